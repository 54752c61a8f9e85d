from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from runners.base import WorkloadError
from runners.parallel.pipeline_cut import find_pipeline_cut
from runners.parallel.records import PipelineCut
from runners.workloads.gpt import gpt


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        return x + torch.tanh(self.layer(x)) + (0 if other is None else other)


class Stack(nn.Module):
    """Blocks between an entrance and an exit; subclasses do something between or around them."""

    def __init__(self, num_blocks: int = 4) -> None:
        super().__init__()
        self.entrance = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.exit = nn.Linear(4, 1)
        self.offset = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.entrance(x) + self.offset
        for block in self.blocks:
            x = block(x)
        return self.exit(x).mean()


class WithSkip(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = first = self.entrance(x)
        for block in self.blocks:
            x = block(x)
        return self.exit(x + first).mean()


class WithSkipOfABlock(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        return self.exit(x + outputs[0]).mean()


class WithCodeBetween(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) * 2
        return self.exit(x).mean()


class WithEncoder(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        encoded = self.entrance(x)
        for block in self.blocks:
            x = block(x, encoded)
        return self.exit(x).mean()


class PairBlock(Block):
    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        return x + self.layer(x), x  # type: ignore[return-value]


class WithPairs(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(PairBlock() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)[0]
        return self.exit(x).mean()


class Shared(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()] * 4)


def cut_of(model: nn.Module, num_stages: int = 2) -> PipelineCut:
    batch = torch.ones(3, 4)
    return find_pipeline_cut(model, lambda: model(batch), ["blocks"], num_stages, num_samples=3)


def test_what_is_used_before_and_after_the_blocks_is_told_apart() -> None:
    cut = cut_of(Stack())
    assert cut.before == {"entrance.weight", "entrance.bias", "offset"}
    assert cut.after == {"exit.weight", "exit.bias"}
    assert cut.outside_bytes == (4 * (16 + 4 + 4), 4 * (4 + 1))
    assert cut.hidden_bytes == (4 * 4,)
    assert cut.output_length is None


@pytest.mark.parametrize(("num_blocks", "num_stages", "firsts"), [(4, 2, (0, 2)), (7, 3, (0, 3, 5)), (3, 3, (0, 1, 2))])
def test_stages_have_as_many_blocks_each_and_the_first_ones_take_the_rest(
    num_blocks: int, num_stages: int, firsts: tuple[int, ...]
) -> None:
    cut = cut_of(Stack(num_blocks), num_stages)
    assert cut.first_blocks == firsts
    assert [block for stage in range(num_stages) for block in cut.blocks_of(stage)] == list(range(num_blocks))


def test_a_tied_head_is_on_the_first_and_on_the_last_stage() -> None:
    model = gpt(n_layer=3, n_embd=8, n_head=2, vocab_size=16)
    batch = model.example_batch(2, 4)
    cut = find_pipeline_cut(model, lambda: model(**batch), ["blocks"], 3, num_samples=2)
    assert cut.stages_outside("token_embedding.weight") == (0, 2)
    assert cut.stages_outside("head.weight") == (0, 2)
    assert cut.stages_outside("position_embedding.weight") == (0,)
    assert cut.stages_outside("norm.weight") == (2,)
    assert cut.outside_bytes[1] == 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (WithSkip, "what runs after the last block of blocks takes more than that block's output"),
        (WithSkipOfABlock, "what runs after the last block of blocks takes more than that block's output"),
        (WithCodeBetween, r"blocks\.1 receives something else than the output of the block before it"),
        (WithEncoder, r"blocks\.0 takes more than its hidden state from what weights compute"),
        (WithPairs, r"blocks\.0 hands on 1 more tensor than its hidden state"),
        (Shared, "one module stands at positions 0, 1, 2, 3 of blocks"),
    ],
)
def test_a_model_of_whose_stages_more_than_hidden_states_would_pass_is_refused(
    make: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(WorkloadError, match=f"runner.strategy is pipeline, but {reason}"):
        cut_of(make())


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"runner\.pipeline_stages is 5, but blocks has 4 blocks"):
        cut_of(Stack(), 5)


@pytest.mark.parametrize("lists", [[], ["encoder.block", "decoder.block"]])
def test_a_model_without_one_list_of_blocks_is_refused(lists: list[str]) -> None:
    with pytest.raises(WorkloadError, match=f"cuts one list of blocks into stages, but the model has {len(lists)}"):
        find_pipeline_cut(Stack(), lambda: torch.zeros(()), lists, 2, num_samples=1)
