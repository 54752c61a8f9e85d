from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.model_shape import BlockList
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.export import forms
from tuner.export.forms import Form, ListedForm, first_misfit, layout_of, one_list, placements_of

UNITS = (("attention", "attn"), ("mlp", "mlp"))
BATCH = BatchShape.split(global_batch_size=2, micro_batch_size=2)
ONE = (BlockList("h", "Block", 6, UNITS),)
TWO = (BlockList("encoder", "Layer", 3, UNITS), BlockList("decoder", "Layer", 3, UNITS))


def policy(*regions: Region) -> RecomputePolicy:
    return RecomputePolicy(BATCH, (BlockListPlacement("h", 6, UNITS, regions),))


def placed(*regions: tuple[Region, ...]) -> RecomputePolicy:
    return RecomputePolicy(
        BATCH, tuple(BlockListPlacement(b.path, 3, UNITS, r) for b, r in zip(TWO, regions, strict=True))
    )


LISTED = [
    forms.NOTHING,
    forms.EVERY_BLOCK,
    forms.FIRST_BLOCKS,
    forms.EVERY_KTH_FROM_THE_FIRST,
    forms.EVERY_KTH_FROM_THE_KTH,
    forms.EQUAL_SEGMENTS,
    forms.SEGMENTS,
    forms.every_unit("mlp"),
    forms.every_unit("mlp", "attention"),
]


@pytest.mark.parametrize("form", LISTED, ids=lambda form: form.text)
@pytest.mark.parametrize("lists", [ONE, TWO], ids=["one list", "two lists"])
def test_a_form_fits_each_of_its_own_placements(form: ListedForm, lists: tuple[BlockList, ...]) -> None:
    layouts = list(form.layouts(lists))
    assert layouts
    for layout in layouts:
        of = RecomputePolicy(BATCH, placements_of(layout, lists))
        assert layout_of(of, lists) == layout
        assert first_misfit(of, [form], lists) is None


@pytest.mark.parametrize(
    "regions, accepted, misfit",
    [
        ([Region(0, 3, "block")], [forms.NOTHING, forms.EVERY_BLOCK], "h: block 4 keeps everything"),
        ([Region(1, 5, "block")], [forms.NOTHING, forms.EVERY_BLOCK], "h: block 1 is recomputed whole"),
        ([Region(0, 5, "mlp")], [forms.EVERY_BLOCK], "h: block 0 recomputes mlp"),
        ([Region(0, 5, "mlp")], [forms.every_unit("attention", "mlp")], "h: block 0 recomputes mlp"),
        (
            [Region(0, 5, "segment", 4)],
            [forms.EQUAL_SEGMENTS],
            "h: block 0 is recomputed in one segment of blocks 0 to 3",
        ),
        ([Region(0, 3, "segment", 2)], [forms.SEGMENTS], "h: block 4 keeps everything"),
        ([Region(0, 2, "block"), Region(3, 3, "mlp")], [forms.ANY_BLOCKS], "h: block 3 recomputes mlp"),
        (
            [Region(0, 1, "segment", 2)],
            [forms.ANY_WITHOUT_SEGMENTS],
            "h: block 0 is recomputed in one segment of blocks",
        ),
        (
            [Region(2, 2, "block"), Region(4, 4, "block")],
            [forms.EVERY_KTH_FROM_THE_KTH],
            "h: block 4 is recomputed whole",
        ),
        ([], [], "h: block 0 keeps everything"),
    ],
)
def test_the_first_block_that_no_form_can_follow(regions: list[Region], accepted: list[Form], misfit: str) -> None:
    found = first_misfit(policy(*regions), accepted, ONE)
    assert found is not None
    assert found.startswith(misfit)


def test_blocks_of_several_lists_are_counted_in_turn() -> None:
    every = (Region(0, 2, "block"),)
    assert first_misfit(placed(every, ()), [forms.EVERY_BLOCK], TWO) == "decoder: block 0 keeps everything"
    assert first_misfit(placed(every, ()), [forms.FIRST_BLOCKS], TWO) is None
    assert (
        first_misfit(placed(every, ()), [one_list(forms.FIRST_BLOCKS)], TWO) == "encoder: block 0 is recomputed whole"
    )


def test_a_segment_of_one_block_is_that_block() -> None:
    assert first_misfit(policy(Region(0, 5, "segment", 1)), [forms.EVERY_BLOCK], ONE) is None


def test_units_in_any_order_are_the_same_units() -> None:
    assert first_misfit(policy(Region(0, 5, "mlp+attention")), [forms.every_unit("attention", "mlp")], ONE) is None


def test_a_list_of_another_model_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="placement names h, which is no list of blocks of this model; its lists are enc"
    ):
        layout_of(policy(), TWO)


@given(st.lists(st.sampled_from(["none", "block", "attention", "mlp", "attention+mlp"]), min_size=6, max_size=6))
def test_whatever_is_said_of_blocks_one_by_one_comes_back(actions: list[str]) -> None:
    of = policy(*(Region(i, i, action) for i, action in enumerate(actions) if action != "none"))
    assert placements_of(layout_of(of, ONE), ONE) == of.canonical().placement
    assert (first_misfit(of, [forms.ANY_BLOCKS], ONE) is None) == (set(actions) <= {"none", "block"})
