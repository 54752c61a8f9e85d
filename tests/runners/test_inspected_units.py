"""Which units of a block are found, which are left out and why, and blocks and units that the user names."""

from __future__ import annotations

import pytest
import torch
from inspected_model import WIDTH, Block, FeedForward, Model, inspect, only_list
from torch import nn

from runners.base import WorkloadError
from search_spaces.model_shape import BlockList


def test_torch_transformer_encoder_has_methods_as_units() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True), 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x).mean()

    units = (("attention", "_sa_block()"), ("mlp", "_ff_block()"))
    assert only_list(Encoder()) == BlockList("encoder.layers", "TransformerEncoderLayer", 3, units)


def test_a_unit_skipped_at_random_is_still_a_unit() -> None:
    class SometimesNoAttention(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.rand(()) > 0.5:
                x = x + self.sa(x)
            return x + self.ffwd(x)

    torch.manual_seed(0)
    assert only_list(Model(nn.ModuleList(SometimesNoAttention() for _ in range(4)))).unit_names == ("attention", "mlp")


def test_a_unit_that_runs_twice_is_left_out_with_the_reason() -> None:
    class TwiceTheMlp(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.ffwd(x)

    shape = inspect(Model(nn.ModuleList(TwiceTheMlp() for _ in range(2)))).shape
    assert shape.block_lists[0].units == (("attention", "sa"),)
    assert "blocks: unit mlp is left out: ffwd is called 2 times by one call of the block." in shape.notes


def test_a_unit_whose_module_is_bypassed_is_left_out_with_the_reason() -> None:
    class Bypassed(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.sa(x) + self.ffwd.down(self.ffwd.up(x))

    shape = inspect(Model(nn.ModuleList(Bypassed() for _ in range(2)))).shape
    assert shape.block_lists[0].units == (("attention", "sa"),)
    assert "blocks: unit mlp is left out: ffwd is not called by the block." in shape.notes


def test_a_unit_that_is_called_by_its_forward_counts_as_called() -> None:
    class Direct(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.sa.forward(x) + self.ffwd.forward(x)

    assert only_list(Model(nn.ModuleList(Direct() for _ in range(2)))).unit_names == ("attention", "mlp")


def test_a_unit_shared_by_the_blocks_is_left_out_with_the_reason() -> None:
    blocks = nn.ModuleList(Block() for _ in range(2))
    blocks[1].ffwd = blocks[0].ffwd
    shape = inspect(Model(blocks)).shape
    assert shape.block_lists[0].units == (("attention", "sa"),)
    assert "blocks: unit mlp is left out: ffwd is one module in several blocks." in shape.notes


def test_named_blocks_and_units_are_taken_as_named() -> None:
    found = only_list(Model(), blocks=["blocks"], units={"expansion": "ffwd.up", "mlp": "ffwd.down"})
    assert found.units == (("expansion", "ffwd.up"), ("mlp", "ffwd.down"))


def test_a_module_that_holds_nothing_but_blocks_can_be_named() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    class Stacked(Model):
        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    found = only_list(Stacked(Stack()), blocks=["blocks"])
    assert found == BlockList("blocks", "Block", 2, (("attention", "sa"), ("mlp", "ffwd")))


def test_a_named_unit_of_one_list_only_is_said_for_the_other() -> None:
    class TwoLists(Model):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.ModuleList(FeedForward() for _ in range(2))

        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            x = super().run_blocks(x)
            for block in self.more:
                x = block(x)
            return x

    shape = inspect(TwoLists(), blocks=["more", "blocks"], units={"attention": "sa"}).shape
    assert [(found.path, found.units) for found in shape.block_lists] == [
        ("blocks", (("attention", "sa"),)),
        ("more", ()),
    ]
    assert any(note.startswith("more: not every block has a unit attention") for note in shape.notes)


@pytest.mark.parametrize(
    "blocks, units, message",
    [
        (["block"], None, r"placement.blocks names block, which Model does not have; did you mean blocks\?"),
        (["blocks.0"], None, r"names blocks.0, which is a Block and no list of blocks .*did you mean blocks\?"),
        ([""], None, r"names the model itself, which is a Model and no list of blocks"),
        (["blocks", "blocks"], None, r"names blocks and blocks, which share blocks"),
        (["none"], None, r"names none, which is empty; known: blocks"),
        (
            None,
            {"mlp": "ffw"},
            r"placement.units names ffw as mlp, which blocks.0 \(Block\) does not have; did you mean ffwd",
        ),
        (None, {"mlp": "ffwrd()"}, r"placement.units names ffwrd\(\) as mlp, which blocks.0 \(Block\)"),
        (None, {"mlp": "ffwd", "up": "ffwd.up"}, r"names ffwd as mlp and ffwd.up as up; one lies in the other"),
    ],
)
def test_wrong_names_are_refused_with_the_near_ones(
    blocks: list[str] | None, units: dict[str, str] | None, message: str
) -> None:
    model = Model()
    model.none = nn.ModuleList()
    with pytest.raises(WorkloadError, match=message):
        inspect(model, blocks=blocks, units=units)
