"""`tune check`: what the model is made of, one plain step, and whether recompute can help at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from runners.trial import ModelInspection, TrialResult, TrialStatus
from search_spaces.choices import SearchChoices
from search_spaces.policy import RecomputePolicy
from tuner import assemble
from tuner.config_file import load_search_file
from tuner.console import EXIT_DONE, EXIT_FAILED, show_text
from tuner.memory_size import describe_bytes, format_bytes
from tuner.single_trial import run_single_trial

#: Counted steps of a check: enough for a figure to look at, too few to rank anything.
_NUM_STEPS = 3


def check_command(search_file: Path, *, as_json: bool) -> int:
    """Inspects the model and measures one plain step at the largest micro-batch that runs; gives back the exit code."""
    config = load_search_file(search_file)
    quick = config.measurement.model_copy(update={"min_steps": _NUM_STEPS, "max_steps": _NUM_STEPS})
    config = config.model_copy(update={"measurement": quick})
    runner = assemble.ray_runner(config)
    try:
        inspection = runner.inspect(assemble.inspection_spec(config))
        cap_bytes = assemble.memory_cap_bytes(config, inspection)
        choices = assemble.search_choices(config, inspection)
        make_spec = assemble.spec_maker(config, cap_bytes=cap_bytes, reference=None)
        for batch in choices.batches:
            result = run_single_trial(runner, make_spec(0, RecomputePolicy(batch)))
            if result.status is not TrialStatus.OUT_OF_MEMORY:
                break
    finally:
        runner.close()
    if as_json:
        document = {"inspection": inspection.model_dump(mode="json"), "baseline": result.model_dump(mode="json")}
        show_text(json.dumps(document, indent=1))
    else:
        for line in [*_model_lines(inspection, choices), *_step_lines(result, cap_bytes)]:
            show_text(line)
    return EXIT_DONE if result.status is TrialStatus.COMPLETED else EXIT_FAILED


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


def _step_lines(result: TrialResult, cap_bytes: int) -> Iterable[str]:
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
        yield _verdict(result.memory_bytes.activations, peak, cap_bytes)
    elif peak <= cap_bytes:
        yield f"It fits into {format_bytes(cap_bytes)}."


def _verdict(activations: int, peak: int, cap_bytes: int) -> str:
    cap, least = format_bytes(cap_bytes), peak - activations
    if peak <= cap_bytes:
        return f"It fits into {cap} without recompute; recompute could only make room for something larger."
    if least > cap_bytes:
        return (
            f"It does not fit into {cap}, and would not even without any activations ({format_bytes(least)}): "
            "recompute alone cannot help; use smaller micro-batches, fewer states or a larger cap."
        )
    main = "the main use" if activations > peak / 2 else "not the main use"
    return (
        f"It does not fit into {cap}. Activations are {activations / peak:.0%} of the peak, {main} of memory; without "
        f"them {format_bytes(least)} would remain, so recompute can help."
    )
