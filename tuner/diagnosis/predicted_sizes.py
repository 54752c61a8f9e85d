"""What is predicted at each micro-batch size, held against the steps that were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runners.diagnosis.records import PeakSplit
from runners.parallel.records import PipelineCut
from runners.trial import DryRunResult
from search_spaces.choices import SearchChoices
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from search_spaces.stage_memory import PipelineStages, StageTimeline
from tuner.diagnosis.least_memory import LeastMemory
from tuner.memory_size import format_bytes

#: Difference of predicted and measured peaks, as a share of the measured one, from which on it is said.
_NOTABLE_DIFFERENCE = 0.01


@dataclass(frozen=True)
class SizePeaks:
    """Predicted peaks at one micro-batch size, in bytes.

    Attributes:
        plain_bytes: Without recompute.
        least_bytes: Of the floor; None where that is not predicted.
    """

    micro_batch_size: int
    plain_bytes: int
    least_bytes: int | None


def predicted_sizes(
    choices: SearchChoices,
    dry_run: DryRunResult,
    floors: Sequence[LeastMemory],
    *,
    dry_run_peaks: Callable[[Sequence[RecomputePolicy]], Sequence[int]],
    cut: PipelineCut | None = None,
) -> tuple[SizePeaks, ...]:
    """All sizes of the search, the largest first; nothing where nothing can be predicted.

    Args:
        floors: One at each size.
        dry_run_peaks: Peaks of policies from a dry run of each; empty where that fails.
        cut: Where a pipeline cuts the model, whose worst stage is meant then.
    """
    if dry_run.profile is None or (cut is not None and dry_run.profile.refusal is not None):
        return ()
    policies = [RecomputePolicy(batch) for batch in choices.batches]
    if cut is not None:
        stages = PipelineStages(cut.first_blocks, cut.outside_bytes, cut.hidden_bytes, cut.tied_bytes)
        of_stages = StageTimeline(MemoryTimeline(dry_run.profile), stages)
        peaks: Sequence[int] = [of_stages.peak_bytes(policy) for policy in policies]
    elif dry_run.profile.refusal is None:
        peaks = [MemoryTimeline(dry_run.profile).peak_bytes(policy) for policy in policies]
    else:
        peaks = dry_run_peaks(policies)
    least = {floor.policy.batch: floor.predicted_peak_bytes for floor in floors}
    return tuple(
        SizePeaks(policy.batch.micro_batch_size, peak, least[policy.batch])
        for policy, peak in zip(policies, peaks, strict=False)  # Dry runs that fail give none.
    )


def difference_text(plain: PeakSplit, sizes: Sequence[SizePeaks]) -> Iterator[str]:
    """How far the plain step's predicted peak is from the measured one; nothing where that is little."""
    measured = plain.peak_memory_bytes
    for size in sizes:
        difference = (size.plain_bytes - measured) / measured
        if size.micro_batch_size != plain.micro_batch_size or abs(difference) <= _NOTABLE_DIFFERENCE:
            continue
        side = "above" if difference > 0 else "below"
        yield (
            f"Predicted peaks of this model are {abs(difference):.1%} {side} the measured one (plain step: "
            f"{format_bytes(size.plain_bytes)} predicted, {format_bytes(measured)} measured). A search corrects "
            "its predictions by what it measures."
        )


def largest_sizes_text(
    plain: PeakSplit, floors: Sequence[PeakSplit], sizes: Sequence[SizePeaks], cap_bytes: int
) -> Iterator[str]:
    """The largest micro-batch at which some placement fits, and at which none is needed.

    Predictions are scaled by what was measured, and what was measured itself stands.
    """
    plain_at = {size.micro_batch_size: size.plain_bytes for size in sizes}
    least_at = {size.micro_batch_size: size.least_bytes for size in sizes if size.least_bytes is not None}
    fits_plain = _largest_fitting(plain_at, {plain.micro_batch_size: plain.peak_memory_bytes}, cap_bytes)
    measured = {floor.micro_batch_size: floor.peak_memory_bytes for floor in floors}
    fits = _largest_fitting(least_at, measured, cap_bytes)
    nothing_new = plain.peak_memory_bytes <= cap_bytes and fits is not None and fits <= plain.micro_batch_size
    if fits is None or nothing_new:
        return
    without = "without recompute none fits" if fits_plain is None else f"without recompute {fits_plain}"
    yield (
        f"The largest micro-batch at which some placement fits is {fits}, {without} (predicted where it was not "
        "measured)."
    )


def _largest_fitting(predicted: dict[int, int], measured: dict[int, int], cap_bytes: int) -> int | None:
    """None where nothing was predicted or nothing fits."""
    known = [size for size in measured if size in predicted]
    if not known:
        return None
    scale = max(measured[size] / predicted[size] for size in known)
    peaks = {**{size: scale * peak for size, peak in predicted.items()}, **{size: measured[size] for size in known}}
    return max((size for size, peak in peaks.items() if peak <= cap_bytes), default=None)
