from __future__ import annotations

from collections.abc import Sequence

import pytest

from runners.dry_run.cell_plan import traced_placements
from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.model_shape import BlockList, ModelShape

ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")
UNITS = (("attention", "attn"), ("mlp", "mlp"))


def choices(
    num_blocks: int, *, actions: tuple[str, ...] = ACTIONS, aliases: tuple[tuple[int, ...], ...] = ()
) -> BlockListChoices:
    shape = ModelShape(0, (BlockList("blocks", "Block", num_blocks, UNITS, aliases),))
    return SearchChoices(shape, 4, (4,), actions).block_lists[0]


def shown(of: BlockListChoices, kinds: Sequence[int]) -> tuple[set[tuple[int, str]], set[int], int]:
    """Actions seen on each kind, lengths of segments over one kind, and the number of placements."""
    singles: set[tuple[int, str]] = set()
    lengths: set[int] = set()
    placements = traced_placements(of, kinds)
    for placement in placements:
        for region in placement.regions:
            if region.action == "segment":
                assert region.segment_size == region.num_blocks
                lengths.add(region.num_blocks)
            else:
                singles |= {(kinds[block], region.action) for block in range(region.first, region.last + 1)}
    return singles, lengths, len(placements)


@pytest.mark.parametrize("num_blocks", [5, 12, 48, 126])
def test_every_action_and_segment_size_is_shown(num_blocks: int) -> None:
    of = choices(num_blocks)
    singles, lengths, _ = shown(of, [0] * num_blocks)
    assert singles == {(0, action) for action in ("attention", "mlp", "attention+mlp", "block")}
    assert lengths == {2, *of.segment_sizes}


def test_one_placement_is_enough_for_a_deep_list_of_alike_blocks() -> None:
    assert shown(choices(48), [0] * 48)[2] == 1


def test_an_odd_block_takes_every_action_once() -> None:
    singles, lengths, num_placements = shown(choices(12), [0, *[1] * 11])
    assert singles == {(kind, action) for kind in (0, 1) for action in ("attention", "mlp", "attention+mlp", "block")}
    assert lengths == {2, 3, 4, 6}
    assert num_placements == 4


def test_segments_over_unlike_blocks_are_shown_where_no_two_are_alike() -> None:
    _, lengths, num_placements = shown(choices(4), [0, 1, 2, 3])
    assert lengths == {2}
    assert num_placements == 5


def test_what_a_segment_leaves_over_is_shown_where_block_is_no_choice() -> None:
    singles, _, _ = shown(choices(6, actions=("none", "segment")), [0] * 6)
    assert singles == {(0, "block")}


def test_positions_of_one_module_take_one_action() -> None:
    of = choices(4, aliases=((0, 2), (1, 3)), actions=("none", "mlp", "block"))
    for placement in traced_placements(of, [0, 0]):
        actions = placement.actions()
        assert (actions[0], actions[1]) == (actions[2], actions[3])
