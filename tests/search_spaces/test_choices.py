from __future__ import annotations

import pytest

from search_spaces.choices import SearchChoices, auto_segment_sizes, every_micro_batch_size
from search_spaces.model_shape import BlockList, KeepSet, ModelShape
from search_spaces.policy import BlockListPlacement, PolicyError, Region

UNITS = (("attention", "attn"), ("mlp", "mlp"))


def search(
    *blocks: BlockList, actions: tuple[str, ...] = ("none", "block"), segment_sizes: tuple[int, ...] | None = None
) -> SearchChoices:
    return SearchChoices(ModelShape(1, blocks), 8, (8,), actions, segment_sizes)


def possible(blocks: BlockList, *actions: str) -> tuple[str, ...]:
    return search(blocks, actions=actions).block_lists[0].actions


def test_actions_come_with_none_first_units_sorted_and_once_each() -> None:
    blocks = BlockList("h", "Block", 4, UNITS)
    assert possible(blocks, "mlp+attention", "block", "attention+mlp", "mlp+mlp") == (
        "none",
        "attention+mlp",
        "block",
        "mlp",
    )


def test_an_action_is_possible_only_where_the_list_has_its_units() -> None:
    assert possible(BlockList("h", "Block", 4, UNITS[:1]), "attention", "mlp", "attention+mlp") == ("none", "attention")


def test_any_named_unit_is_an_action() -> None:
    assert possible(BlockList("h", "Block", 4, (("router", "gate"),)), "router") == ("none", "router")


def test_a_list_that_supports_no_action_keeps_everything() -> None:
    assert possible(BlockList("h", "Block", 1), "attention", "segment") == ("none",)


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        pytest.param(BlockList("h", "Block", 4, segment_refusal="skips join its blocks"), "skips join", id="no-chain"),
        pytest.param(BlockList("h", "Block", 1), "the list has a single block", id="single"),
        pytest.param(BlockList("h", "Block", 4, aliases=((0, 2),)), "one module stands at several", id="aliases"),
    ],
)
def test_segments_are_no_choice_and_the_note_says_why(blocks: BlockList, reason: str) -> None:
    choices = search(blocks, actions=("none", "segment"), segment_sizes=(2, 9))
    assert choices.block_lists[0].actions == ("none",)
    assert choices.block_lists[0].segment_sizes == ()
    (note,) = choices.notes()
    assert note.startswith("h: action segment is not tried: ")
    assert reason in note


def test_segments_longer_than_the_list_are_one_group_and_said_once() -> None:
    choices = search(BlockList("h", "Block", 7), actions=("segment",), segment_sizes=(1, 2, 3, 5, 8, 24))
    assert choices.block_lists[0].segment_sizes == (1, 2, 3, 5, 7)
    assert choices.notes() == ("h: segments of 8, 24 blocks are one segment over the whole list, which has 7.",)


def test_a_unit_that_no_block_has_is_said() -> None:
    choices = search(BlockList("h", "Block", 4, UNITS), actions=("none", "moe"))
    assert choices.notes() == ("h: action moe is not tried: the blocks have no unit moe (units: attention, mlp).",)


def test_lists_of_which_the_same_is_true_share_a_line() -> None:
    blocks = [BlockList(path, "Block", 2) for path in ("layer1", "layer2")]
    choices = search(*blocks, BlockList("h", "Block", 2, UNITS), actions=("none", "moe"))
    assert choices.notes() == (
        "layer1, layer2: action moe is not tried: the blocks have no unit moe (units: none).",
        "h: action moe is not tried: the blocks have no unit moe (units: attention, mlp).",
    )


def test_units_that_no_block_has_are_one_line() -> None:
    choices = search(BlockList("h", "Block", 4), actions=("none", "attention", "mlp", "attention+mlp"))
    assert choices.notes() == (
        "h: actions attention, mlp and attention+mlp are not tried: the blocks have no units attention and mlp (units: "
        "none).",
    )


@pytest.mark.parametrize(
    ("num_blocks", "sizes"), [(1, ()), (2, (2,)), (3, (2,)), (7, (2, 3)), (12, (2, 3, 4, 6)), (126, (2, 6, 9, 14, 21))]
)
def test_auto_segment_sizes(num_blocks: int, sizes: tuple[int, ...]) -> None:
    assert auto_segment_sizes(num_blocks) == sizes


@pytest.mark.parametrize("num_blocks", [4, 5, 7, 12, 23, 24, 31, 48, 80, 96, 126, 199])
def test_auto_segment_sizes_are_few_lie_within_half_the_depth_and_near_its_root(num_blocks: int) -> None:
    sizes = auto_segment_sizes(num_blocks)
    assert 1 <= len(sizes) <= 5
    assert sizes[0] == 2
    assert sizes[-1] <= num_blocks // 2
    assert min(abs(size - num_blocks**0.5) for size in sizes) <= num_blocks**0.5 / 2


def test_the_root_segment_size_is_the_nearest_one_allowed() -> None:
    choices = search(BlockList("h", "Block", 16), actions=("segment",), segment_sizes=(2, 5, 8))
    assert choices.block_lists[0].sqrt_segment_size == 5


def test_batches_start_at_the_largest_micro_batch() -> None:
    shape = ModelShape(1)
    choices = SearchChoices(shape, 24, (1, 4, 2), ("none",), data_parallel_degree=2)
    assert [(b.micro_batch_size, b.gradient_accumulation_steps) for b in choices.batches] == [(4, 3), (2, 6), (1, 12)]


@pytest.mark.parametrize(
    ("global_batch_size", "degree", "sizes"),
    [(8, 1, (1, 2, 4, 8)), (12, 1, (1, 2, 3, 4, 6, 12)), (12, 2, (1, 2, 3, 6)), (7, 2, ())],
)
def test_every_micro_batch_size_divides(global_batch_size: int, degree: int, sizes: tuple[int, ...]) -> None:
    assert every_micro_batch_size(global_batch_size, data_parallel_degree=degree) == sizes


def test_a_micro_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(PolicyError, match="micro_batch_size 3 x data_parallel_degree 1 does not divide"):
        SearchChoices(ModelShape(1), 8, (8, 3), ("none",))


def test_no_micro_batch_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="micro_batch_sizes is empty"):
        SearchChoices(ModelShape(1), 8, (), ("none",))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("selective:matmul", r"action 'selective:matmul': 'matmul' names no operator; .* one of matmuls, attention,"),
        ("offload+mlp", "action 'offload\\+mlp' joins 'offload'"),
        ("block+mlp", r"action 'block\+mlp' joins 'block'; allowed are"),
        ("attention+", r"action 'attention\+' joins ''; allowed are"),
    ],
)
def test_an_action_that_means_nothing_is_refused(action: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(BlockList("h", "Block", 4, UNITS), actions=("none", action))


def test_a_segment_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="segment_sizes has 0; whole numbers of at least 1 are allowed"):
        search(BlockList("h", "Block", 4), segment_sizes=(2, 0))


def test_place_divides_a_run_into_segments_with_a_shorter_last_one() -> None:
    blocks = search(BlockList("h", "Block", 7), actions=("segment",)).block_lists[0]
    (region,) = blocks.place(["segment"] * 7, 3).regions
    assert region.segments() == ((0, 2), (3, 5), (6, 6))


def test_place_gives_a_shared_module_its_action_at_every_position() -> None:
    blocks = search(BlockList("h", "Block", 4, aliases=((0, 2),))).block_lists[0]
    assert blocks.modules == ((0, 2), (1,), (3,))
    assert blocks.place(["block", "none", "none"]).actions() == ("block", "none", "block", "none")


def test_groups_that_overlap_are_one_module() -> None:
    blocks = search(BlockList("h", "Block", 5, aliases=((0, 1), (3, 4), (1, 3)))).block_lists[0]
    assert blocks.modules == ((0, 1, 3, 4), (2,))


def test_positions_of_one_module_with_different_actions_are_refused() -> None:
    blocks = search(BlockList("h", "Block", 3, aliases=((0, 2),))).block_lists[0]
    with pytest.raises(ValueError, match="block 2 has action none, but it is the same module as block 0"):
        blocks.module_actions(BlockListPlacement("h", 3, (), (Region(0, 0, "block"),)))


def test_a_placement_with_other_units_is_refused() -> None:
    blocks = search(BlockList("h", "Block", 3, UNITS)).block_lists[0]
    with pytest.raises(ValueError, match="this search places h with 3 blocks and units"):
        blocks.module_actions(BlockListPlacement("h", 3, (("attention", "self_attn"),)))


KEEP = (KeepSet("selective", ("aten.mm.default[0]",)), KeepSet("selective:matmuls", ("aten.mm.default",)))


def test_selective_stands_for_the_keep_sets_that_were_found() -> None:
    blocks = BlockList("h", "Block", 4, keep_sets=KEEP)
    assert possible(blocks, "selective", "selective:matmuls", "selective:aten.bmm.default") == (
        "none",
        "selective:aten.mm.default[0]",
        "selective:aten.mm.default",
        "selective:aten.bmm.default",
    )


def test_selective_without_a_keep_set_is_no_choice_and_the_note_says_why() -> None:
    choices = search(BlockList("h", "Block", 4), actions=("selective", "selective:attention"))
    assert choices.block_lists[0].actions == ("none",)
    assert choices.notes() == (
        "h: action selective is not tried: no operator of its blocks is worth keeping.",
        "h: action selective:attention is not tried: its blocks run no operator that is among the attention.",
    )


def test_units_that_share_a_part_are_not_joined() -> None:
    blocks = BlockList("h", "Block", 4, (*UNITS, ("activation", "mlp..mlp.down")), overlaps=(("activation", "mlp"),))
    choices = search(blocks, actions=("activation+mlp", "activation+attention"))
    assert choices.block_lists[0].actions == ("none", "activation+attention")
    (note,) = choices.notes()
    assert "activation+mlp is not tried: activation and mlp share a part of the block" in note
