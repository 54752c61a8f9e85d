"""The placement that is predicted to need the least memory at a micro-batch size: the floor of a search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runners.trial import DryRunResult
from search_spaces.choices import SearchChoices
from search_spaces.policy import BLOCK, BatchShape, RecomputePolicy
from search_spaces.uniform import uniform_placements
from tuner.planning.predictor import stretches_predictor


@dataclass(frozen=True)
class LeastMemory:
    """A placement that no other one of the search goes below.

    Attributes:
        predicted_peak_bytes: None where nothing was predicted and it is taken to be recompute of every block.
    """

    policy: RecomputePolicy
    predicted_peak_bytes: int | None


def least_memory(
    choices: SearchChoices, dry_run: DryRunResult, shapes: Iterable[BatchShape], *, cap_bytes: int
) -> list[LeastMemory]:
    """One for each of the batch shapes, which are among those of the choices."""
    if dry_run.profile is None or dry_run.profile.refusal is not None:
        return [LeastMemory(_every_block(choices, shape), None) for shape in shapes]
    predictor = stretches_predictor(choices, dry_run, None, cap_bytes=cap_bytes, tokens=None)
    candidates, times = predictor.candidates(cap_bytes)
    columns = list(zip(candidates.peaks_bytes.tolist(), times.tolist(), range(len(candidates)), strict=True))
    floors = []
    for shape in shapes:
        index_of_shape = choices.batches.index(shape)
        of_shape = [column for column in columns if candidates.batch_indices[column[2]] == index_of_shape]
        peak, _, index = min(of_shape)
        floors.append(LeastMemory(candidates.policy(index), int(peak)))
    return floors


def _every_block(choices: SearchChoices, shape: BatchShape) -> RecomputePolicy:
    placements = uniform_placements(choices)
    placement = placements.get(BLOCK, next(reversed(placements.values())))
    return RecomputePolicy(shape, placement, choices.rng_choices[0]).canonical()
