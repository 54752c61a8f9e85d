"""What stands above every exported config: where it comes from, what was measured, and what the file does not say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from search_spaces.yaml_words import one_line
from tuner.export.base import ExportContext, Exporter
from tuner.export.notes import compile_note, pipeline_note
from tuner.memory_size import format_bytes
from tuner.results import StudyResults, TrialRecord
from tuner.summary import throughput_text

#: Top-level key of the header in formats without comments; parsers that know their keys ignore it.
JSON_KEY = "recompute_tuner"


def header_lines(exporter: Exporter, study: StudyResults, trial: TrialRecord, context: ExportContext) -> list[str]:
    """The header, a line each, without comment signs."""
    return [
        f"study {study.study}, trial {trial.number}, policy {trial.policy_key}: {trial.policy_summary}",
        f"for {context.version.covers} (--stack-version {context.version.name})",
        f"batch: b={trial.micro_batch_size} per pass x a={trial.gradient_accumulation_steps} accumulated x "
        f"w={trial.data_parallel_degree} data-parallel ranks = E={trial.global_batch_size} per optimizer step",
        *(f"blocks: {blocks.path}, {blocks.num_blocks} x {blocks.kind}" for blocks in context.block_lists),
        f"measured: {_measured(study, trial)}",
        f"proof that it trains the same model: {_proof(trial)}",
        *_notes([*exporter.notes(trial.to_policy(), context), *compile_note(context), *pipeline_note(context)]),
    ]


def with_header(body: str, exporter: Exporter, lines: Sequence[str]) -> str:
    """The file: header and body in the exporter's syntax.

    Names in the lines may come from anyone: none of them can end its line and write into the body.
    """
    if exporter.header_syntax == "hash":
        return "".join(f"# {one_line(line)}\n" for line in lines) + body
    if exporter.header_syntax == "json":
        return json.dumps({JSON_KEY: list(lines), **json.loads(body)}, indent=2) + "\n"
    return body


def _measured(study: StudyResults, trial: TrialRecord) -> str:
    figures = [throughput_text(trial)]
    if trial.step_time_s is not None:
        figures.append(f"{trial.step_time_s:.4g} s per optimizer step")
    if trial.peak_memory_bytes is not None:
        figures.append(
            f"peak {format_bytes(trial.peak_memory_bytes)} of a cap of {format_bytes(study.memory_cap_bytes)}"
        )
    versions = ", ".join(
        f"{name} {study.environment[name]}" for name in ("torch", "python") if name in study.environment
    )
    return f"{', '.join(figures)}, on {trial.device or 'an unknown device'} with {versions or 'unknown versions'}"


def _proof(trial: TrialRecord) -> str:
    return "none" if trial.verification is None else trial.verification.verdict.value


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield "what this file does not do by itself:"
        yield from (f"- {note}" for note in notes)
