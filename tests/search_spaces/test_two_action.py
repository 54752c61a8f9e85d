from __future__ import annotations

from itertools import islice

import pytest

from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.parameters import Choice, Integer, ParameterValue
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from search_spaces.two_action import TwoActionEncoding, two_action_space

UNITS = (("attention", "attn"), ("mlp", "mlp"))
ACTIONS = ("none", "attention", "mlp", "block", "segment")


def encoding(blocks: BlockList, *actions: str, segment_sizes: tuple[int, ...] | None = None) -> TwoActionEncoding:
    choices = SearchChoices(ModelShape(1, (blocks,)), 8, (8,), actions or ACTIONS, segment_sizes)
    return TwoActionEncoding(choices.block_lists[0])


def twelve(*actions: str, segment_sizes: tuple[int, ...] | None = None) -> TwoActionEncoding:
    return encoding(BlockList("h", "Block", 12, UNITS), *actions, segment_sizes=segment_sizes)


def placed(*regions: Region) -> BlockListPlacement:
    return BlockListPlacement("h", 12, UNITS, regions)


def test_parameters_of_a_list() -> None:
    assert twelve(segment_sizes=(2, 3)).parameters() == (
        Choice("h/first_action", ACTIONS),
        Choice("h/second_action", ACTIONS),
        Integer("h/num_first", 1, 12),
        Choice("h/segment_size", (2, 3)),
    )


def test_a_list_without_a_choice_has_no_parameter() -> None:
    assert encoding(BlockList("h", "Block", 12), "none", "attention").parameters() == ()


def test_a_single_block_has_one_action() -> None:
    assert encoding(BlockList("h", "Block", 1), "none", "block").parameters() == (
        Choice("h/first_action", ("none", "block")),
    )


def test_a_list_that_is_one_module_throughout_has_one_action() -> None:
    shared = encoding(BlockList("h", "Block", 3, aliases=((0, 1, 2),)), "none", "block")
    assert [p.name for p in shared.parameters()] == ["h/first_action"]
    assert shared.decode({"h/first_action": "block"}).regions == (Region(0, 2, "block"),)


def test_decode_gives_the_first_blocks_the_first_action() -> None:
    values: dict[str, ParameterValue] = {
        "h/first_action": "mlp",
        "h/second_action": "segment",
        "h/num_first": 5,
        "h/segment_size": 3,
    }
    assert twelve().decode(values).regions == (Region(0, 4, "mlp"), Region(5, 11, "segment", 3))


def test_equal_actions_are_one_region_wherever_the_border_is() -> None:
    values: dict[str, ParameterValue] = {
        "h/first_action": "segment",
        "h/second_action": "segment",
        "h/num_first": 5,
        "h/segment_size": 4,
    }
    assert twelve().decode(values).regions == (Region(0, 11, "segment", 4),)


def test_segments_longer_than_their_run_encode_back() -> None:
    space = twelve(segment_sizes=(4,))
    short_run = placed(Region(0, 2, "segment", 3), Region(3, 11, "mlp")).canonical()
    assert space.decode(space.encode(short_run)) == short_run


def test_a_segment_of_one_block_is_a_block_even_where_block_is_no_action() -> None:
    space = twelve("none", "segment", segment_sizes=(4,))
    one_block = placed(Region(0, 0, "block"))
    assert space.encode(one_block)["h/first_action"] == "segment"


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        pytest.param(
            [Region(0, 2, "mlp"), Region(5, 8, "attention")],
            r"h: block 5 begins a third stretch \(attention\); the two_action encoding has two per list, use per_block",
            id="three-stretches",
        ),
        pytest.param([Region(3, 11, "attention+mlp")], "h: block 3 has action attention.mlp; this", id="not-tried"),
        pytest.param([Region(6, 11, "segment", 4)], "h: block 6 begins segments of 4; .* out of 2, 3", id="other-size"),
    ],
)
def test_what_cannot_be_said_is_refused_with_list_and_block(regions: list[Region], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        twelve(segment_sizes=(2, 3)).encode(placed(*regions))


def test_levels_refine_from_all_blocks_to_halves_to_quarters() -> None:
    space = twelve("none", "block")
    borders = [{placement.regions[0].num_blocks for placement in space.placements(level)} for level in (1, 2)]
    assert borders == [{6}, {3, 9}]
    assert sum(len(list(space.placements(level))) for level in range(space.num_levels())) == 2 + 2 * 11


def test_space_over_two_lists_splits_one_of_them_before_both() -> None:
    lists = (BlockList("encoder.block", "Block", 4), BlockList("decoder.block", "Block", 4))
    choices = SearchChoices(ModelShape(1, lists), 1, (1,), ("none", "block"))
    policies = list(two_action_space(choices).policies())
    assert len(policies) == (2 + 2 * 3) ** 2
    num_split = [sum(0 < p.actions().count("block") < 4 for p in policy.placement) for policy in policies]
    assert num_split[:4] == [0, 0, 0, 0]
    first_with_both = num_split.index(2)
    assert set(num_split[4:first_with_both]) == {1}


def test_rng_handling_is_one_policy_where_nothing_is_recomputed() -> None:
    shape = ModelShape(1, (BlockList("h", "Block", 2),))
    choices = SearchChoices(shape, 1, (1,), ("none", "block"), preserve_rng_state="search")
    summaries = [policy.summary() for policy in two_action_space(choices).policies()]
    assert summaries == [
        "none @1x1",
        "block @1x1",
        "block rng off @1x1",
        "block[1] @1x1",
        "block[1] rng off @1x1",
        "block[0] @1x1",
        "block[0] rng off @1x1",
    ]
    assert two_action_space(choices).count_up_to(100) == 7


def test_rng_handling_that_is_not_tried_is_refused() -> None:
    shape = ModelShape(1, (BlockList("h", "Block", 2),))
    placement = BlockListPlacement("h", 2, (), (Region(0, 1, "block"),))
    policy = RecomputePolicy(BatchShape(1, 1, 1, 1), (placement,), preserve_rng_state=False)
    with pytest.raises(ValueError, match="preserve_rng_state is False; this search tries True only"):
        two_action_space(SearchChoices(shape, 1, (1,), ("none", "block"))).encode(policy)


def test_a_model_without_lists_still_has_its_micro_batches() -> None:
    space = two_action_space(SearchChoices(ModelShape(1), 8, (8, 2), ("none", "block")))
    assert [policy.summary() for policy in islice(space.policies(), 9)] == ["none @8x1", "none @2x4"]
