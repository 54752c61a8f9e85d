"""The placement that is predicted to need the least memory at a micro-batch size: the floor of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from runners.parallel.records import PipelineCut
from runners.trial import DryRunResult
from search_spaces.choices import SearchChoices
from search_spaces.policy import BLOCK, BatchShape, RecomputePolicy
from search_spaces.uniform import uniform_placements
from tuner.planning.predictor import stretches_predictor
from tuner.planning.uniform_policies import uniform_policies


@dataclass(frozen=True)
class LeastMemory:
    """A placement that no other one of the search, or of those that were predicted, goes below.

    Attributes:
        predicted_peak_bytes: None where nothing was predicted and it is taken to be recompute of every block.
        lowest_among: As in `PeakSplit`.
    """

    policy: RecomputePolicy
    predicted_peak_bytes: int | None = None
    lowest_among: Literal["all placements", "one action on all blocks"] | None = None


def least_memory(
    choices: SearchChoices,
    dry_run: DryRunResult,
    shapes: Iterable[BatchShape],
    *,
    cap_bytes: int,
    dry_run_peaks: Callable[[Sequence[RecomputePolicy]], Sequence[int]],
    cut: PipelineCut | None = None,
) -> list[LeastMemory]:
    """One for each of the batch shapes, which are among those of the choices.

    Args:
        cut: Where a pipeline cuts the model, whose worst stage is meant then.
        dry_run_peaks: Peaks of policies from a dry run of each, for a model whose peaks cannot be added up; empty where
            that fails.
    """
    if dry_run.profile is None or (cut is not None and dry_run.profile.refusal is not None):
        return [LeastMemory(_every_block(choices, shape)) for shape in shapes]
    if dry_run.profile.refusal is not None:
        return [_least_uniform(choices, shape, dry_run_peaks) for shape in shapes]
    predictor = stretches_predictor(choices, dry_run, None, cap_bytes=cap_bytes, tokens=None, cut=cut)
    candidates, times = predictor.candidates(cap_bytes)
    columns = list(zip(candidates.peaks_bytes.tolist(), times.tolist(), range(len(candidates)), strict=True))
    floors = []
    for shape in shapes:
        index_of_shape = choices.batches.index(shape)
        peak, _, index = min(column for column in columns if candidates.batch_indices[column[2]] == index_of_shape)
        floors.append(LeastMemory(candidates.policy(index), int(peak), "all placements"))
    return floors


def _least_uniform(
    choices: SearchChoices,
    shape: BatchShape,
    dry_run_peaks: Callable[[Sequence[RecomputePolicy]], Sequence[int]],
) -> LeastMemory:
    policies = [policy for each in uniform_policies(choices).values() for policy in each if policy.batch == shape]
    peaks = list(dry_run_peaks(policies))
    if len(peaks) < len(policies):
        return LeastMemory(_every_block(choices, shape))
    peak, index = min((peak, index) for index, peak in enumerate(peaks))
    return LeastMemory(policies[index], peak, "one action on all blocks")


def _every_block(choices: SearchChoices, shape: BatchShape) -> RecomputePolicy:
    placements = uniform_placements(choices)
    placement = placements.get(BLOCK, next(reversed(placements.values())))
    return choices.policy(shape, placement)
