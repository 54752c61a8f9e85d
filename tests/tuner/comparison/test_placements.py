from __future__ import annotations

from typing import Any

import pytest

from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.comparison.placements import block_actions, likeness, num_recompute_regions, num_recomputed_blocks

UNITS = (("attention", "attn"), ("mlp", "mlp"))


def policy(*regions: Region, num_blocks: int = 6, path: str = "h", micro: int = 2, **options: Any) -> RecomputePolicy:
    batch = BatchShape.split(global_batch_size=4, micro_batch_size=micro)
    return RecomputePolicy(batch, (BlockListPlacement(path, num_blocks, UNITS, regions),), **options)


@pytest.mark.parametrize(
    ("regions", "num_blocks", "num_regions"),
    [
        ([], 0, 0),
        ([Region(0, 5, "block")], 6, 6),
        ([Region(0, 5, "segment", 4)], 6, 2),
        ([Region(1, 2, "attention+mlp"), Region(3, 3, "mlp")], 3, 5),
        ([Region(0, 3, "none")], 0, 0),
    ],
    ids=["none", "block", "segments", "units", "none-named"],
)
def test_blocks_and_regions_are_counted(regions: list[Region], num_blocks: int, num_regions: int) -> None:
    placed = policy(*regions)
    assert (num_recomputed_blocks(placed), num_recompute_regions(placed)) == (num_blocks, num_regions)


def test_actions_tell_segments_by_their_size() -> None:
    assert block_actions(policy(Region(0, 3, "segment", 2), Region(4, 4, "mlp"))) == {
        "h": ("segment(2)", "segment(2)", "segment(2)", "segment(2)", "mlp", "none")
    }


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (policy(Region(0, 5, "block")), policy(Region(0, 2, "block"), Region(3, 5, "block"))),
        (policy(Region(0, 5, "block")), policy(Region(0, 7, "block"), num_blocks=8, path="layers")),
        (policy(), policy(num_blocks=8)),
        (policy(), policy(preserve_rng_state=False)),
        (policy(), RecomputePolicy(BatchShape.split(global_batch_size=4, micro_batch_size=2))),
        (policy(Region(0, 1, "mlp")), policy(Region(0, 1, "mlp"), path="layers")),
    ],
    ids=["spelling", "depth", "plain", "plain-without-rng", "plain-without-lists", "path"],
)
def test_policies_that_do_the_same_are_alike(a: RecomputePolicy, b: RecomputePolicy) -> None:
    assert likeness(a) == likeness(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (policy(Region(0, 5, "block")), policy(Region(0, 4, "block"))),
        (policy(Region(0, 2, "block")), policy(Region(0, 2, "block"), num_blocks=8)),
        (policy(Region(0, 5, "segment", 2)), policy(Region(0, 5, "segment", 3))),
        (policy(), policy(micro=4)),
        (policy(Region(0, 5, "block")), policy(Region(0, 5, "block"), preserve_rng_state=False)),
        (policy(compile="blocks"), policy(compile="blocks", compile_memory_budget=0.5)),
    ],
    ids=["blocks", "part-of-another-depth", "segment-size", "micro-batch", "rng", "compiler's budget"],
)
def test_policies_that_do_not_are_not(a: RecomputePolicy, b: RecomputePolicy) -> None:
    assert likeness(a) != likeness(b)
