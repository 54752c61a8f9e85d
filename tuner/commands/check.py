"""`tune check`: what the model is made of, what a plain step is made of, and whether recompute can help at all."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.table import Table

from runners.base import TrialRunner
from runners.diagnosis.records import Diagnosis, DiagnosisSpec, PeakSplit
from runners.trial import ModelInspection, TrialResult, TrialStatus
from search_spaces.choices import SearchChoices
from search_spaces.policy import NONE, RecomputePolicy
from tuner import assemble
from tuner.communication_text import communication_text
from tuner.config import SearchConfig
from tuner.console import EXIT_DONE, EXIT_FAILED, err_console, show, show_text
from tuner.diagnosis.ablation_table import ablation_table, sizes_table
from tuner.diagnosis.copies_text import copies_text
from tuner.diagnosis.findings import floor_text, main_consumer_text, remedies_text, verdict_text
from tuner.diagnosis.habits_text import habits_text
from tuner.diagnosis.least_memory import LeastMemory, least_memory
from tuner.diagnosis.place_table import place_table
from tuner.diagnosis.predicted_sizes import SizePeaks, difference_text, largest_sizes_text, predicted_sizes
from tuner.diagnosis.stage_floors import stage_floors_text
from tuner.memory_size import describe_bytes, format_bytes
from tuner.search_file.load import load_search_file
from tuner.single_trial import run_single_trial
from tuner.stage_text import stages_text

#: Counted steps of a check: enough for a figure to look at, too few to rank anything.
_NUM_STEPS = 3
#: Seconds after which no further micro-batch size is begun for the ablation.
_ABLATION_BUDGET_S = 60.0
#: Columns of sentences.
_WIDTH = 100


def check_command(search_file: Path, *, as_json: bool) -> int:
    """Takes apart a plain step at the largest micro-batch that runs; gives back the exit code."""
    config = load_search_file(search_file)
    quick = config.measurement.model_copy(update={"min_steps": _NUM_STEPS, "max_steps": _NUM_STEPS})
    config = config.model_copy(update={"measurement": quick})
    runner = assemble.ray_runner(config)
    try:
        with _at_work("measuring one plain step"):
            inspection = runner.inspect(assemble.inspection_spec(config))
            cap_bytes = assemble.memory_cap_bytes(config, inspection)
            choices = assemble.search_choices(config, inspection)
            result = _plain_trial(config, runner, inspection, choices, cap_bytes)
        found = _Findings(Diagnosis(failure="the plain step did not run"))
        if result.status is TrialStatus.COMPLETED:
            with _at_work("taking it apart, block by block"):
                found = _findings(config, runner, inspection, choices, result, cap_bytes)
    finally:
        runner.close()
    if as_json:
        show_text(_document(inspection, result, found, cap_bytes))
    else:
        for part in _report(inspection, choices, result, found, cap_bytes):
            show_text(part) if isinstance(part, str) else show(part)
    return EXIT_DONE if result.status is TrialStatus.COMPLETED else EXIT_FAILED


def _plain_trial(
    config: SearchConfig, runner: TrialRunner, inspection: ModelInspection, choices: SearchChoices, cap_bytes: int
) -> TrialResult:
    """The baseline at the largest micro-batch that runs."""
    make_spec = assemble.spec_maker(config, inspection, cap_bytes=cap_bytes, reference=None)
    for batch in choices.batches:
        placement = tuple(of_list.place([NONE] * of_list.num_modules) for of_list in choices.block_lists)
        result = run_single_trial(runner, make_spec(0, choices.policy(batch, placement)))
        if result.status is not TrialStatus.OUT_OF_MEMORY:
            break
    return result


@dataclass(frozen=True)
class _Findings:
    """What a check knows beside the plain trial.

    Attributes:
        diagnosis: Of one process, whatever the strategy.
        sizes: What is predicted at each micro-batch size; of the worst stage of a pipeline.
        stage_floors: Predicted at each size, the largest first; empty without stages.
    """

    diagnosis: Diagnosis
    sizes: tuple[SizePeaks, ...] = ()
    stage_floors: tuple[LeastMemory, ...] = ()


def _findings(
    config: SearchConfig,
    runner: TrialRunner,
    inspection: ModelInspection,
    choices: SearchChoices,
    plain: TrialResult,
    cap_bytes: int,
) -> _Findings:
    """The plain step taken apart, and the floors at its size and at the smallest with what was predicted of them.

    The floors of a pipeline are those of its worst stage, and predicted only: one process cannot run them.
    """
    dry_run = runner.dry_run(assemble.dry_run_spec(config, choices))
    shapes = dict.fromkeys((plain.policy.batch, choices.batches[-1]))

    def dry_run_peaks(policies: Sequence[RecomputePolicy]) -> Sequence[int]:
        return runner.dry_run(assemble.dry_run_spec(config, policies=policies)).peaks_bytes

    cut = inspection.pipeline_cut
    every_floor = least_memory(
        choices, dry_run, choices.batches, cap_bytes=cap_bytes, dry_run_peaks=dry_run_peaks, cut=cut
    )
    floor_at = {floor.policy.batch: floor for floor in every_floor}
    floors = [floor_at[shape] for shape in shapes] if cut is None else []
    peaks = predicted_sizes(choices, dry_run, every_floor, dry_run_peaks=dry_run_peaks, cut=cut)
    of_stages = () if cut is None else tuple(every_floor)
    sizes = tuple(size for size in choices.micro_batch_sizes if size <= plain.policy.batch.micro_batch_size)
    diagnosis = runner.diagnosis(
        DiagnosisSpec(
            workload=assemble.workload_spec(config),
            choices=replace(choices, micro_batch_sizes=sizes),
            floors=tuple(floor.policy for floor in floors),
            budget_s=_ABLATION_BUDGET_S,
            timeout_s=config.runner.trial_timeout_s,
        )
    )
    if diagnosis.failure is not None:
        return _Findings(diagnosis, peaks, of_stages)
    predicted = (
        split.model_copy(
            update={"predicted_peak_bytes": floor.predicted_peak_bytes, "lowest_among": floor.lowest_among}
        )
        for split, floor in zip(diagnosis.floors, floors, strict=True)
    )
    return _Findings(diagnosis.model_copy(update={"floors": tuple(predicted)}), peaks, of_stages)


def _document(inspection: ModelInspection, result: TrialResult, found: _Findings, cap_bytes: int) -> str:
    document = {
        "memory_cap_bytes": cap_bytes,
        "inspection": inspection.model_dump(mode="json"),
        "baseline": result.model_dump(mode="json"),
        "diagnosis": found.diagnosis.model_dump(mode="json"),
        "predicted_peaks": [asdict(size) for size in found.sizes],
    }
    return json.dumps(document, indent=1)


def _report(
    inspection: ModelInspection,
    choices: SearchChoices,
    result: TrialResult,
    found: _Findings,
    cap_bytes: int,
) -> Iterator[str | Table]:
    yield from _model_lines(inspection, choices)
    yield from _step_lines(result)
    if result.communication is not None:
        rank = "a rank" if result.stage_micro_batches is None else "the stage that sends and receives most"
        yield f"  communication of {rank}: {communication_text(result.communication)}"
        stages = stages_text(result)
        if stages is not None:
            yield f"  {stages}"
        yield from _short_verdict(result, cap_bytes)
        yield from map(_wrapped, stage_floors_text(found.stage_floors, found.sizes, result.policy.batch, cap_bytes))
        num_ranks = len(result.stage_micro_batches or ()) or result.policy.batch.data_parallel_degree
        yield _wrapped(
            f"note: what follows is of one process that trains alone, with the whole model and none of the "
            f"{num_ranks} ranks' communication; the line above is of the ranks."
        )
    if result.status is not TrialStatus.COMPLETED:
        return
    diagnosis, plain = found.diagnosis, found.diagnosis.plain
    if plain is None:
        yield f"diagnosis: none, {diagnosis.failure}"
        yield from _short_verdict(result, cap_bytes)
        return
    yield ""
    unit = format_bytes(plain.peak_memory_bytes).split()[-1]
    yield f"Who holds the peak, in {unit}:"
    yield place_table(plain, unit)
    yield from map(_wrapped, main_consumer_text(plain, diagnosis.kept_bytes))
    if not found.stage_floors:
        yield from _verdict(plain, found, cap_bytes)
    if diagnosis.habits is not None:
        yield ""
        yield from map(_wrapped, habits_text(diagnosis.habits))
    if inspection.host_copies is not None and inspection.plain_forward is not None:
        yield ""
        yield from map(_wrapped, copies_text(inspection.host_copies, inspection.plain_forward))
    yield from _ablation(diagnosis)


def _verdict(plain: PeakSplit, found: _Findings, cap_bytes: int) -> Iterator[str]:
    """Whether recompute can help, and what else would."""
    floors = found.diagnosis.floors
    yield from map(_wrapped, floor_text(floors))
    yield from map(_wrapped, difference_text(plain, found.sizes))
    verdict = [verdict_text(plain, floors, cap_bytes), *largest_sizes_text(plain, floors, found.sizes, cap_bytes)]
    yield _wrapped(" ".join(verdict))
    remedies = list(remedies_text(plain, floors))
    if remedies:
        yield "What helps besides recompute:"
        yield from (_wrapped(f"  {remedy}") for remedy in remedies)


def _ablation(diagnosis: Diagnosis) -> Iterator[str | Table]:
    if not diagnosis.unit_costs:
        return
    size = diagnosis.unit_costs[0].micro_batch_size
    yield ""
    yield _wrapped(f"What recompute of a block or segment saves and what rebuilding it takes, at micro-batch {size}:")
    yield ablation_table(diagnosis.unit_costs, size)
    others = sizes_table(diagnosis.unit_costs)
    if others is not None:
        yield "The same of one block or segment (medians) at each micro-batch size:"
        yield others
    if diagnosis.sizes_left_out:
        sizes = ", ".join(map(str, diagnosis.sizes_left_out))
        yield f"Not measured for want of time: micro-batch {sizes}."


def _wrapped(text: str) -> str:
    """In lines of a terminal's width, the further ones indented."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _model_lines(inspection: ModelInspection, choices: SearchChoices) -> Iterable[str]:
    shape = inspection.shape
    yield f"model: {inspection.model_class}, {shape.num_parameters:,} parameters (ties counted once)"
    for blocks in shape.block_lists:
        units = ", ".join(f"{name} = {path}" for name, path in blocks.units) or "none found"
        yield f"blocks: {blocks.path}, {blocks.num_blocks} x {blocks.kind}; units: {units}"
        if blocks.aliases:
            groups = "; ".join(", ".join(map(str, group)) for group in blocks.aliases)
            yield f"  positions that hold one module and take one choice: {groups}"
        yield f"  segments: {'possible' if blocks.can_segment else f'refused, {blocks.segment_refusal}'}"
    if not shape.block_lists:
        yield "blocks: none found, so only the micro-batch size can be searched"
    for note in dict.fromkeys((*shape.notes, *choices.notes())):
        yield f"note: {note}"


def _step_lines(result: TrialResult) -> Iterable[str]:
    if result.status is not TrialStatus.COMPLETED or result.peak_memory_bytes is None:
        yield f"plain step: {result.status.value}, {result.reason}"
        return
    peak = result.peak_memory_bytes
    batch = result.policy.batch
    yield (
        f"plain step at micro-batch {batch.micro_batch_size} x {batch.gradient_accumulation_steps}: "
        f"{result.step_time_s:.4g} s, peak {describe_bytes(peak)}"
    )
    if result.verification is not None and result.verification.reason:
        yield f"  proof: {result.verification.verdict.value}, {result.verification.reason}"
    if result.memory_bytes is not None:
        for kind, size in result.memory_bytes.model_dump().items():
            yield f"  {kind.replace('_', ' '):<17}{format_bytes(size):>11}  {size / peak:>4.0%}"


def _short_verdict(result: TrialResult, cap_bytes: int) -> Iterator[str]:
    """What can be said of the trial's own figures alone."""
    peak, memory = result.peak_memory_bytes, result.memory_bytes
    cap = format_bytes(cap_bytes)
    if peak is None or memory is None:
        return
    if peak <= cap_bytes:
        yield f"It fits into {cap} without recompute; recompute could only make room for something larger."
    elif peak - memory.activations > cap_bytes:
        yield (
            f"It does not fit into {cap}, and would not even without any activations "
            f"({format_bytes(peak - memory.activations)}): recompute alone cannot help; use smaller micro-batches, "
            "fewer states or a larger cap."
        )
    else:
        yield (
            f"It does not fit into {cap}. Activations are {memory.activations / peak:.0%} of the peak; without them "
            f"{format_bytes(peak - memory.activations)} would remain, so recompute can help."
        )


@contextmanager
def _at_work(what: str) -> Iterator[None]:
    """Says on a terminal what takes its time."""
    if not err_console.is_terminal:
        yield
        return
    with err_console.status(what):
        yield
