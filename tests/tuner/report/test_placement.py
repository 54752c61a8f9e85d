from __future__ import annotations

import pytest

from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.report.placement import BlockStrip, block_strips, legend

UNITS = (("attention", "attn"), ("mlp", "mlp"), ("cross", "cross_attention"))


def strips(*regions: Region, num_blocks: int = 8) -> list[BlockStrip]:
    placement = BlockListPlacement("h", num_blocks, UNITS, regions)
    return block_strips(RecomputePolicy(BatchShape(1, 1, 1, 1), (placement,)))


def test_a_cell_for_every_block_with_its_action() -> None:
    (strip,) = strips(Region(0, 1, "block"), Region(3, 3, "attention+mlp"), num_blocks=126)
    assert [cell.number for cell in strip.cells] == list(range(126))
    assert [cell.action.name for cell in strip.cells[:5]] == ["block", "block", "none", "attention+mlp", "none"]
    assert strip.cells[3].action.letters == "AM"
    assert strip.cells[0].tip == "block 0: block recomputed"
    assert strip.units == "attention = attn, cross = cross_attention, mlp"


def test_segments_are_bracketed_each_on_its_own() -> None:
    (strip,) = strips(Region(1, 7, "segment", 3))
    assert [cell.edge for cell in strip.cells] == ["", "first", "inner", "last", "first", "inner", "last", "only"]
    assert strip.cells[5].tip == "block 5: recomputed in one segment with blocks 4 to 6"


@pytest.mark.parametrize(
    ("regions", "words"),
    [
        ((), "all 8 blocks keep everything"),
        ((Region(0, 7, "block"),), "blocks 0-7: block"),
        (
            (Region(0, 3, "segment", 2), Region(6, 6, "mlp")),
            "blocks 0-3: segment of 2 blocks; 6: mlp; the other 3 keep everything",
        ),
    ],
)
def test_the_placement_in_words(regions: tuple[Region, ...], words: str) -> None:
    assert strips(*regions)[0].words == words


def test_legend_names_what_occurs_each_once_in_a_look_of_its_own() -> None:
    regions = (Region(0, 1, "mlp"), Region(2, 2, "cross"), Region(3, 3, "block"), Region(4, 4, "attention+cross"))
    actions = legend([*strips(*regions), *strips(Region(0, 7, "mlp"))])
    assert [action.name for action in actions] == ["none", "mlp", "block", "attention+cross", "cross"]
    assert len({(action.hue, action.letters) for action in actions}) == 5
    assert [action.meaning for action in actions[-2:]] == [
        "attention and cross, each on its own",
        "the cross of the block",
    ]


def test_what_waits_on_the_host_or_is_kept_is_not_said_to_be_recomputed() -> None:
    (strip,) = strips(Region(0, 3, "offload"), Region(4, 7, "selective:aten.addmm.default"))
    assert strip.cells[0].tip == "block 0: activations wait on the host"
    assert strip.cells[4].tip == "block 4: recomputed, but for what aten.addmm.default give"
    assert "wait on the host" in strip.cells[0].action.meaning


@pytest.mark.parametrize(
    ("regions", "budget", "words", "left"),
    [
        ((), 0.5, "all 2 blocks left to the compiler, which may keep 50%", [0, 1]),
        (
            (Region(0, 0, "block"),),
            0.125,
            "blocks 0: block; the other 1 left to the compiler, which may keep 12.5%",
            [1],
        ),
    ],
    ids=["in place of a placement", "beside one"],
)
def test_blocks_that_are_left_to_the_compiler_are_never_said_to_keep_everything(
    regions: tuple[Region, ...], budget: float, words: str, left: list[int]
) -> None:
    placement = BlockListPlacement("h", 2, UNITS, regions)
    within = RecomputePolicy(BatchShape(1, 1, 1, 1), (placement,), compile="model", compile_memory_budget=budget)
    (strip,) = block_strips(within)
    assert strip.words == f"{words} of the activations"
    meaning = words.partition("left")[1] + words.partition("left")[2] + " of the activations"
    assert {action.name: action.meaning for action in legend([strip])}["none"] == meaning
    assert [cell.number for cell in strip.cells if cell.tip == f"block {cell.number}: {meaning}"] == left


def test_the_compilers_own_budget_keeps_everything() -> None:
    placement = BlockListPlacement("h", 2, UNITS)
    whole = RecomputePolicy(BatchShape(1, 1, 1, 1), (placement,), compile="model", compile_memory_budget=1.0)
    assert block_strips(whole)[0].words == "all 2 blocks keep everything"
