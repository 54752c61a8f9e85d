"""`tune export`: a measured policy as a training config."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from search_spaces.whole_file import write_whole
from tuner.commands.export_into import export_into
from tuner.console import EXIT_DONE, EXIT_FAILED, err_console, show_text
from tuner.export.base import Exporter, ExportError, StackVersion
from tuner.export.choose_trial import choose_trial
from tuner.export.context import context_of
from tuner.export.export_trial import export_trial
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version, installed_misfit
from tuner.memory_size import parse_memory_size
from tuner.results import TrialRecord
from tuner.selfcheck.self_check import describe_report, self_check
from tuner.studies import find_study


@dataclass(frozen=True)
class ExportOptions:
    """What a user may ask of an export.

    Attributes:
        trial: By number; None takes the best.
        memory_cap: The fastest trial within it, as the user wrote it.
        output: File to write; None is standard output.
        stack_version: Of the stack to write for; None takes the newest.
        through_python: Whether training code will use `tuner.integrations`.
        into: The user's own config or launch script, whose keys are set.
        dry_run: Whether that file is only compared.
        check: Whether the installed stack is asked what it recomputes under the export.
        uri: MLflow store that has the study, where it ran on another machine.
    """

    trial: int | None = None
    memory_cap: str | None = None
    output: Path | None = None
    stack_version: str | None = None
    through_python: bool = False
    into: Path | None = None
    dry_run: bool = False
    check: bool = False
    uri: str | None = None


def export_command(study: str, export_format: str, options: ExportOptions, *, output_dir: Path, as_json: bool) -> int:
    """Writes the config to a file or to standard output, or into the user's own; gives back the exit code."""
    exporter = _exporter(export_format)
    _refuse_contradictions(options)
    version = choose_version(exporter, options.stack_version)
    _, results = find_study(study, output_dir=output_dir, uri=options.uri)
    memory_cap_bytes = _bytes(options.memory_cap)
    chosen = choose_trial(results, number=options.trial, memory_cap_bytes=memory_cap_bytes)
    _refuse_stages(exporter, version, chosen)
    context = context_of(results, version, through_python=options.through_python)
    text = export_trial(exporter, results, chosen, context, memory_cap_bytes=memory_cap_bytes)
    warning = installed_misfit(version)
    if warning is not None:
        err_console.print(warning, soft_wrap=True)
    document: dict[str, object] = {
        "format": exporter.name,
        "stack_version": version.name,
        "trial": chosen.number,
        "policy_key": chosen.policy_key,
        "settings": exporter.settings(chosen.to_policy(), context),
    }
    if options.into is not None:
        document |= export_into(options.into, exporter, chosen, context, dry_run=options.dry_run)
    elif options.output is not None:
        _write(options.output, text)
        err_console.print(
            f"trial {chosen.number} ({chosen.policy_summary}) written to {options.output}", soft_wrap=True
        )
        document |= {"file": str(options.output)}
    elif not as_json:
        show_text(text)
    report = self_check(exporter, results, chosen, context, text) if options.check else None
    for line in [] if report is None else describe_report(report):
        err_console.print(line, soft_wrap=True, markup=False)
    if as_json:
        found = {} if report is None else {"check": {**report.model_dump(), "agrees": report.agrees}}
        show_text(json.dumps({**document, **found, "text": text}, indent=2))
    return EXIT_DONE if report is None or report.agrees else EXIT_FAILED


def _refuse_contradictions(options: ExportOptions) -> None:
    if options.trial is not None and options.memory_cap is not None:
        raise ExportError(f"--trial is {options.trial} and --memory-cap is {options.memory_cap}; name one of the two")
    if options.into is not None and options.output is not None:
        raise ExportError(f"--into is {options.into} and --output is {options.output}; name one of the two")
    if options.dry_run and options.into is None:
        raise ExportError("--dry-run goes with --into, which is not given; name the file to compare")


def _refuse_stages(exporter: Exporter, version: StackVersion, chosen: TrialRecord) -> None:
    """Refuses to say what holds for the blocks of the whole model in words that count blocks stage by stage."""
    stages = chosen.stage_micro_batches
    if stages is not None and version.pipeline_key is not None and chosen.to_policy().recomputes:
        raise ExportError(
            f"trial {chosen.number} was measured in a pipeline of {len(stages)} stages, and {version.covers} counts "
            f"blocks anew in each stage, so --format {exporter.name} cannot say its policy; allowed are trials without "
            "recompute; use --format policy, which applies to the whole model before it is cut"
        )


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise ExportError(
            f"--output is {path}, which cannot be written: {error.strerror}; name another file"
        ) from error


def _exporter(name: str) -> Exporter:
    exporter = EXPORTERS.get(name)
    if exporter is None:
        near = difflib.get_close_matches(name, EXPORTERS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ExportError(f"--format is {name!r}; known are {', '.join(EXPORTERS)}{hint or '; name one of these'}")
    return exporter


def _bytes(memory_cap: str | None) -> int | None:
    if memory_cap is None:
        return None
    try:
        size = parse_memory_size(memory_cap)
    except ValueError as error:
        raise ExportError(f"--memory-cap {error}") from error
    if size.num_bytes is None:
        raise ExportError(
            f"--memory-cap is {memory_cap}; a share of a device means nothing here, write bytes such as 40GiB"
        )
    return size.num_bytes
