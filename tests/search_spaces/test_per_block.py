from __future__ import annotations

import pytest

from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.parameters import Choice
from search_spaces.per_block import PerBlockEncoding
from search_spaces.policy import BlockListPlacement, Region


def encoding(blocks: BlockList, *actions: str, segment_sizes: tuple[int, ...] | None = None) -> PerBlockEncoding:
    choices = SearchChoices(ModelShape(1, (blocks,)), 8, (8,), actions, segment_sizes)
    return PerBlockEncoding(choices.block_lists[0])


def test_each_distinct_module_has_a_parameter() -> None:
    space = encoding(BlockList("h", "Block", 3, aliases=((0, 2),)), "none", "block")
    assert space.parameters() == (Choice("h/0", ("none", "block")), Choice("h/1", ("none", "block")))


def test_runs_of_segment_share_one_size_and_a_lone_one_is_a_block() -> None:
    space = encoding(BlockList("h", "Block", 6), "none", "segment", segment_sizes=(2,))
    on, off = "segment", "none"
    values = dict(zip([f"h/{i}" for i in range(6)], [on, off, on, on, on, off], strict=True)) | {"h/segment_size": 2}
    placement = space.decode(values)
    assert placement.regions == (Region(0, 0, "block"), Region(2, 4, "segment", 2))
    assert space.encode(placement) == values


def test_every_second_block_is_expressible() -> None:
    space = encoding(BlockList("h", "Block", 4), "none", "block")
    placement = BlockListPlacement("h", 4, (), (Region(0, 0, "block"), Region(2, 2, "block")))
    assert space.decode(space.encode(placement)) == placement


def test_two_segment_sizes_in_one_list_are_refused() -> None:
    space = encoding(BlockList("h", "Block", 9), "none", "segment", segment_sizes=(2, 3))
    placement = BlockListPlacement("h", 9, (), (Region(0, 3, "segment", 2), Region(4, 8, "segment", 3)))
    with pytest.raises(ValueError, match="h: block 0 begins segments of 2; this search tries one segment size"):
        space.encode(placement)


def test_a_space_of_independent_choices_has_all_their_combinations() -> None:
    space = encoding(BlockList("h", "Block", 5), "none", "block")
    placements = [placement for level in range(space.num_levels()) for placement in space.placements(level)]
    assert len(set(placements)) == len(placements) == 2**5
    assert space.count_up_to(1000) == 2**5
