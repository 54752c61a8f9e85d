from __future__ import annotations

import pytest

from runners.diagnosis.unit_effort import effort_of, least_seconds
from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape

UNITS = (("attention", "attn"), ("mlp", "mlp"))


def choices(*sizes: int) -> SearchChoices:
    """Four blocks of two units, searched with segments of two."""
    shape = ModelShape(1, (BlockList("h", "Block", 4, UNITS),))
    return SearchChoices(shape, 8, sizes, ("none", "attention", "mlp", "attention+mlp", "block", "segment"), (2,))


def test_alike_blocks_take_one_forward_pass_for_each_thing_that_is_kept() -> None:
    # One plain; one each for attention, mlp and both; first, inner and last block; two segments.
    # Each round takes a step with both units, one with blocks and one with segments.
    effort = effort_of(choices(8), 1.0, lambda blocks: (0,) * blocks.num_blocks)
    assert (effort.once_s, effort.round_s) == (9.0, 12.0)


def test_blocks_that_differ_take_more() -> None:
    assert effort_of(choices(8), 1.0, lambda blocks: (0, 1, 2, 3)).once_s > 9.0


def test_the_least_is_that_of_the_quickest_size_after_a_look_at_larger_ones() -> None:
    assert least_seconds(choices(8), lambda size: 1.0) == pytest.approx(3 + 1 + 21)
    assert least_seconds(choices(8, 2), {8: 4.0, 2: 1.0}.__getitem__) == pytest.approx(3 + 4 + 1 + 21)
