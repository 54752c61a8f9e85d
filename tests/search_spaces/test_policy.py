from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.policy import (
    BatchShape,
    BlockListPlacement,
    PolicyError,
    RecomputePolicy,
    Region,
    policy_to_dict,
)
from search_spaces.policy_reader import policy_from_dict

_UNITS = (("attention", "attn"), ("mlp", "mlp"))
_ACTIONS = ("none", "attention", "mlp", "attention+mlp", "mlp+attention", "block", "segment")


def placement(*regions: Region, num_blocks: int = 12, blocks: str = "transformer.h") -> BlockListPlacement:
    return BlockListPlacement(blocks, num_blocks, _UNITS, regions)


def policy(*placements: BlockListPlacement, preserve_rng_state: bool = True, micro: int = 2) -> RecomputePolicy:
    return RecomputePolicy(
        BatchShape.split(global_batch_size=8, micro_batch_size=micro), placements, preserve_rng_state
    )


@st.composite
def placements(draw: st.DrawFn, blocks: str = "h") -> BlockListPlacement:
    num_blocks = draw(st.integers(1, 9))
    cuts = sorted(draw(st.sets(st.integers(0, num_blocks - 1))) | {0})
    regions = []
    for first, after in zip(cuts, [*cuts[1:], num_blocks], strict=True):
        if draw(st.booleans()):
            action = draw(st.sampled_from(_ACTIONS))
            size = draw(st.integers(1, num_blocks + 1)) if action == "segment" else None
            regions.append(Region(first, after - 1, action, size))
    return BlockListPlacement(blocks, num_blocks, _UNITS, tuple(regions))


@st.composite
def policies(draw: st.DrawFn) -> RecomputePolicy:
    paths = draw(st.lists(st.sampled_from(("encoder", "decoder", "vision.layers")), unique=True, max_size=3))
    micro = draw(st.sampled_from((1, 2, 4, 8)))
    measured = draw(st.none() | st.just({"study": "x", "tokens_per_second": 1.5, "versions": {"torch": "2.13"}}))
    batch = BatchShape.split(global_batch_size=8, micro_batch_size=micro)
    return RecomputePolicy(batch, tuple(draw(placements(path)) for path in paths), draw(st.booleans()), measured)


def recomputed_together(placed: BlockListPlacement) -> dict[tuple[int, ...], frozenset[str]]:
    """An independent reading: each set of blocks that backward rebuilds at once, and what of them it rebuilds."""
    together: dict[tuple[int, ...], frozenset[str]] = {}
    for region in placed.regions:
        size = region.segment_size or 1
        for first in range(region.first, region.last + 1, size):
            blocks = tuple(range(first, min(first + size, region.last + 1)))
            if region.action != "none":
                whole = region.action in ("block", "segment")
                together[blocks] = frozenset({"whole"} if whole else region.action.split("+"))
    return together


# Batch


def test_a_batch_is_split_exactly() -> None:
    assert BatchShape.split(global_batch_size=24, micro_batch_size=2, data_parallel_degree=3) == BatchShape(2, 4, 3, 24)


@pytest.mark.parametrize("micro", [3, 16, 0, -2])
def test_a_batch_that_does_not_divide_is_refused(micro: int) -> None:
    with pytest.raises(PolicyError, match=rf"micro_batch_size {micro} x data_parallel_degree 1 does not divide"):
        BatchShape.split(global_batch_size=8, micro_batch_size=micro)


def test_a_batch_whose_product_differs_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"global_batch_size is 9, but .* is 8; the two must be equal"):
        BatchShape(2, 4, 1, 9)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", None])
def test_a_batch_holds_whole_numbers(value: Any) -> None:
    with pytest.raises(PolicyError, match=r"batch\.micro_batch_size is .*; a whole number of at least 1 is allowed"):
        BatchShape(value, 1, 1, 1)


# Placement


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ([Region(0, 12, "block")], r"region 0-12 is out of order or outside the list"),
        ([Region(-1, 2, "block")], r"region -1-2 is out of order"),
        ([Region(3, 2, "block")], r"region 3-2 is out of order"),
        ([Region(0, 3, "block"), Region(3, 5, "mlp")], r"region 3-5 is out of order .* from 4 to 11"),
        ([Region(6, 8, "block"), Region(0, 5, "mlp")], r"region 0-5 is out of order"),
        ([Region(0, 3, "segment")], r"segment_size goes with action segment"),
        ([Region(0, 3, "block", 2)], r"segment_size goes with action segment"),
        ([Region(0, 3, "segment", 0)], r"segment_size is 0; at least 1"),
        (
            [Region(0, 3, "attn")],
            r"action attn names unit 'attn'; known here: none, block, segment, selective, offload, attention, mlp",
        ),
        ([Region(0, 3, "attention+router")], r"names unit 'router'"),
        ([Region(0, 3, "attention+")], r"names unit ''"),
        ([Region(0, 3, "attention+block")], r"names unit 'block'"),
        ([Region(0, 3, "")], r"names unit ''"),
        ([Region(0, 3, "selective")], r"keep: no operator is named"),
        ([Region(0, 3, "selective:mm")], r"keep: 'mm' names no operator"),
        ([Region(0, 3, "offload", 2)], r"segment_size goes with action segment"),
    ],
)
def test_a_placement_that_contradicts_itself_is_refused(regions: list[Region], message: str) -> None:
    with pytest.raises(PolicyError, match=rf"placement of transformer\.h: .*{message}"):
        placement(*regions)


@pytest.mark.parametrize("name", ["none", "block", "segment", "selective", "offload", "a+b", ""])
def test_a_unit_cannot_take_the_name_of_another_action(name: str) -> None:
    with pytest.raises(PolicyError, match=rf"a unit is named '{name.replace('+', '.')}'; any name but"):
        BlockListPlacement("h", 2, ((name, "path"),))


def test_an_empty_list_of_blocks_is_refused() -> None:
    with pytest.raises(PolicyError, match="num_blocks is 0; from 1 to 10000 are allowed"):
        BlockListPlacement("h", 0)


def test_a_list_of_blocks_is_placed_once() -> None:
    with pytest.raises(PolicyError, match=r"placement names transformer\.h twice"):
        policy(placement(), placement())


def test_the_last_segment_is_shorter_where_the_size_does_not_divide() -> None:
    assert Region(0, 6, "segment", 3).segments() == ((0, 2), (3, 5), (6, 6))
    assert Region(2, 4, "segment", 8).segments() == ((2, 4),)


def test_only_segments_have_segments() -> None:
    with pytest.raises(PolicyError, match="region 0-3 has action block, which has no segments"):
        Region(0, 3, "block").segments()


def test_actions_name_every_block() -> None:
    placed = placement(Region(1, 2, "mlp"), Region(4, 5, "segment", 2), num_blocks=7)
    assert placed.actions() == ("none", "mlp", "mlp", "none", "segment", "segment", "none")


# Normal form


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ([Region(0, 11, "none")], []),
        ([Region(0, 1, "block"), Region(2, 3, "block")], [Region(0, 3, "block")]),
        ([Region(0, 1, "block"), Region(3, 4, "block")], [Region(0, 1, "block"), Region(3, 4, "block")]),
        ([Region(0, 3, "mlp+attention")], [Region(0, 3, "attention+mlp")]),
        ([Region(0, 3, "mlp+mlp")], [Region(0, 3, "mlp")]),
        ([Region(0, 3, "segment", 1)], [Region(0, 3, "block")]),
        ([Region(0, 3, "segment", 9)], [Region(0, 3, "segment", 4)]),
        ([Region(0, 3, "segment", 2), Region(4, 5, "segment", 2)], [Region(0, 5, "segment", 2)]),
        ([Region(0, 3, "segment", 2), Region(4, 4, "block")], [Region(0, 4, "segment", 2)]),
        ([Region(0, 5, "segment", 3), Region(6, 7, "segment", 2)], [Region(0, 7, "segment", 3)]),
        (
            [Region(0, 5, "segment", 3), Region(6, 9, "segment", 2)],
            [Region(0, 5, "segment", 3), Region(6, 9, "segment", 2)],
        ),
        ([Region(0, 2, "segment", 2), Region(3, 3, "block")], [Region(0, 1, "segment", 2), Region(2, 3, "block")]),
        (
            [Region(0, 4, "segment", 3), Region(5, 7, "segment", 3)],
            [Region(0, 4, "segment", 3), Region(5, 7, "segment", 3)],
        ),
    ],
)
def test_the_normal_form(regions: list[Region], expected: list[Region]) -> None:
    assert list(placement(*regions).canonical().regions) == expected


@settings(max_examples=250, deadline=None, derandomize=True)
@given(placements())
def test_the_normal_form_recomputes_the_same_and_is_its_own_normal_form(placed: BlockListPlacement) -> None:
    normal = placed.canonical()
    assert recomputed_together(normal) == recomputed_together(placed)
    assert normal.canonical() == normal


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_placements_share_a_normal_form_exactly_where_they_recompute_the_same(data: st.DataObject) -> None:
    one = data.draw(placements())
    other = data.draw(st.one_of(placements(), st.just(rewritten(one))))
    same = one.num_blocks == other.num_blocks and recomputed_together(one) == recomputed_together(other)
    assert (one.canonical() == other.canonical()) is same


def rewritten(placed: BlockListPlacement) -> BlockListPlacement:
    """The same placement with one region for each part that is rebuilt at once."""
    together = sorted(recomputed_together(placed).items())
    regions = [
        Region(blocks[0], blocks[-1], "segment", len(blocks))
        if parts == {"whole"}
        else Region(blocks[0], blocks[-1], "+".join(sorted(parts, reverse=True)))
        for blocks, parts in together
    ]
    return BlockListPlacement(placed.blocks, placed.num_blocks, placed.units[::-1], tuple(regions))


def test_the_setting_for_randomness_counts_only_where_something_is_recomputed() -> None:
    assert policy(placement(), preserve_rng_state=False).canonical() == policy(placement()).canonical()
    busy = placement(Region(0, 0, "block"))
    assert policy(busy, preserve_rng_state=False).canonical() != policy(busy).canonical()


# Key


def test_the_key_ignores_what_changes_nothing() -> None:
    busy = placement(Region(0, 3, "mlp"), blocks="a")
    key = policy(busy).key
    assert policy(busy, placement(Region(0, 3, "none"), blocks="b")).key == key
    assert policy(BlockListPlacement("a", 12, (("mlp", "mlp"),), busy.regions)).key == key
    assert RecomputePolicy(policy(busy).batch, (busy,), True, {"study": "x"}).key == key


@pytest.mark.parametrize(
    "other",
    [
        policy(placement(Region(0, 3, "mlp")), micro=4),
        policy(placement(Region(0, 3, "attention"))),
        policy(placement(Region(0, 4, "mlp"))),
        policy(placement(Region(0, 3, "mlp"), blocks="other")),
        policy(placement(Region(0, 3, "mlp")), preserve_rng_state=False),
        policy(BlockListPlacement("transformer.h", 12, (("mlp", "other"),), (Region(0, 3, "mlp"),))),
        policy(),
    ],
)
def test_the_key_tells_policies_apart(other: RecomputePolicy) -> None:
    assert other.key != policy(placement(Region(0, 3, "mlp"))).key


def test_the_key_is_the_same_in_every_release() -> None:
    assert policy(placement(Region(0, 3, "segment", 2))).key == "9bc12a1d5394"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(policies(), policies())
def test_the_order_of_lists_changes_neither_normal_form_nor_key(one: RecomputePolicy, other: RecomputePolicy) -> None:
    turned = RecomputePolicy(one.batch, one.placement[::-1], one.preserve_rng_state)
    assert turned.canonical() == one.canonical()
    assert turned.key == one.key
    assert one.canonical() != other.canonical() or one.key == other.key
    assert one.recomputes == any(recomputed_together(placed) for placed in one.placement)


# Plain data


@settings(max_examples=300, deadline=None, derandomize=True)
@given(policies())
def test_plain_data_and_back(one: RecomputePolicy) -> None:
    data = policy_to_dict(one)
    again = policy_from_dict(json.loads(json.dumps(data)))
    assert again == one
    assert again.measured == one.measured
    assert hash(again) == hash(one)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (policy(placement()), "none @2x4"),
        (policy(placement(Region(0, 11, "block"))), "block @2x4"),
        (policy(placement(Region(0, 11, "segment", 3))), "segment(3) @2x4"),
        (policy(placement(Region(0, 5, "mlp"), Region(6, 6, "block")), micro=8), "mlp[0-5] block[6] @8x1"),
        (policy(placement(Region(0, 5, "mlp")), preserve_rng_state=False), "mlp[0-5] rng off @2x4"),
        (
            policy(placement(Region(0, 11, "mlp"), blocks="a"), placement(blocks="b")),
            "a: mlp @2x4",
        ),
    ],
)
def test_the_summary_is_one_short_line(one: RecomputePolicy, text: str) -> None:
    assert one.summary() == text


class TestCompiled:
    def test_what_is_compiled_is_part_of_the_file_and_of_the_key(self) -> None:
        plain = policy(placement(Region(0, 5, "block")))
        compiled = [
            replace(plain, compile="blocks"),
            replace(plain, compile="model"),
            replace(plain, compile="model", compile_memory_budget=0.5),
            replace(plain, compile="blocks", compile_memory_budget=0.5),
        ]
        assert len({each.key for each in (plain, *compiled)}) == 5
        for each in compiled:
            assert policy_from_dict(policy_to_dict(each)) == each
            assert each.canonical().canonical() == each.canonical()
        assert "compile" not in policy_to_dict(plain)
        assert compiled[2].summary() == "block[0-5] compiled model budget 0.5 @2x4"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"compile": "inductor"}, "compile is 'inductor'; blocks or model is allowed"),
            ({"compile_memory_budget": 0.5}, "compile is left out; it goes with compile blocks or model only"),
            ({"compile": "model", "compile_memory_budget": 2}, "is 2; a number from 0 to 1 is allowed"),
            ({"compile": "model", "compile_memory_budget": True}, "is True; a number from 0 to 1 is allowed"),
            ({"compile": "blocks", "placement": ()}, "placement names no list of blocks"),
        ],
    )
    def test_what_cannot_be_compiled_is_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(PolicyError, match=re.escape(message)):
            replace(policy(placement(Region(0, 5, "block"))), **changes)

    @pytest.mark.parametrize(
        ("action", "reason"),
        [
            ("selective:aten.mm.default", "outputs of single operators cannot be kept in compiled code"),
            ("offload", "its own affair"),
        ],
    )
    def test_what_compiled_code_does_not_show_is_refused(self, action: str, reason: str) -> None:
        with pytest.raises(PolicyError, match=f"in a compiled policy, but .*{reason}; leave compile out"):
            replace(policy(placement(Region(0, 5, action))), compile="model")


# Selective


def test_kept_operators_are_written_apart_from_the_action() -> None:
    of = RecomputePolicy(BatchShape(2, 1, 1, 2), (placement(Region(0, 3, "selective:aten.mm.default[2,0]+a.b.c")),))
    (region,) = policy_to_dict(of.canonical())["placement"][0]["regions"]
    assert region == {"first": 0, "last": 3, "action": "selective", "keep": ["a.b.c", "aten.mm.default[0,2]"]}
    assert policy_from_dict(policy_to_dict(of)).canonical() == of.canonical()
    assert of.summary() == "selective(b.c+mm[0,2])[0-3] @2x1"


def test_equal_keep_sets_are_one_policy_and_others_are_others() -> None:
    def key(*regions: Region) -> str:
        return RecomputePolicy(BatchShape(2, 1, 1, 2), (placement(*regions),)).key

    both = "selective:aten.mm.default+aten.bmm.default"
    turned = "selective:aten.bmm.default+aten.mm.default"
    assert key(Region(0, 3, both)) == key(Region(0, 1, turned), Region(2, 3, both))
    assert key(Region(0, 3, both)) != key(Region(0, 3, "selective:aten.mm.default"))
    assert key(Region(0, 3, both)) != key(Region(0, 3, "block"))
