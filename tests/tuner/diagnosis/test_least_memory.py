from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from simulated_profile import DRY_RUN, PROFILE
from simulation import MIB, SHAPE

from runners.trial import DryRunResult
from search_spaces.choices import SearchChoices
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BlockListPlacement, RecomputePolicy, Region
from tuner.diagnosis.least_memory import least_memory

CHOICES = SearchChoices(SHAPE, 2, (1, 2), ("none", "attention", "mlp", "attention+mlp", "block"))
TIMELINE = MemoryTimeline(PROFILE)


def of(dry_run: DryRunResult, peaks: bool = True) -> list[tuple[str, int | None, str | None]]:
    found = least_memory(
        CHOICES,
        dry_run,
        CHOICES.batches,
        cap_bytes=20 * MIB,
        dry_run_peaks=lambda policies: [TIMELINE.peak_bytes(policy) for policy in policies] if peaks else [],
    )
    return [(least.policy.summary(), least.predicted_peak_bytes, least.lowest_among) for least in found]


def test_no_placement_of_the_search_goes_below_it() -> None:
    blocks = SHAPE.block_lists[0]
    placements = itertools.product(CHOICES.block_lists[0].actions, repeat=blocks.num_blocks)
    least = {}
    for batch, actions in itertools.product(CHOICES.batches, placements):
        regions = tuple(Region(i, i, action) for i, action in enumerate(actions) if action != "none")
        policy = RecomputePolicy(batch, (BlockListPlacement("h", blocks.num_blocks, blocks.units, regions),))
        peak = TIMELINE.peak_bytes(policy.canonical())
        least[batch] = min(peak, least.get(batch, peak))
    assert [peak for _, peak, _ in of(DRY_RUN)] == [least[batch] for batch in CHOICES.batches]
    assert {among for _, _, among in of(DRY_RUN)} == {"all placements"}


def test_of_equal_peaks_the_cheapest_is_taken() -> None:
    summaries = [summary for summary, _, _ in of(DRY_RUN)]
    peaks = [peak for _, peak, _ in of(DRY_RUN)]
    for summary, peak, batch in zip(summaries, peaks, CHOICES.batches, strict=True):
        block = RecomputePolicy(batch, (CHOICES.block_lists[0].place(["block"] * 2),))
        assert TIMELINE.peak_bytes(block) >= peak
        assert summary.endswith(f"@{batch.micro_batch_size}x{batch.gradient_accumulation_steps}")


def test_where_peaks_do_not_add_up_it_is_the_lowest_of_the_uniform_ones() -> None:
    refused = DryRunResult(profile=replace(PROFILE, refusal="its blocks hand tensors across"))
    assert [among for _, _, among in of(refused)] == ["one action on all blocks"] * 2
    assert [summary for summary, _, _ in of(refused)] == ["block @2x1", "block @1x2"]


@pytest.mark.parametrize(
    "dry_run",
    [DryRunResult(failure="it asks for values"), DryRunResult(profile=replace(PROFILE, refusal="layers are dropped"))],
    ids=["no dry run", "its dry runs fail"],
)
def test_without_predictions_it_is_taken_to_be_every_block(dry_run: DryRunResult) -> None:
    assert of(dry_run, peaks=False) == [("block @2x1", None, None), ("block @1x2", None, None)]
