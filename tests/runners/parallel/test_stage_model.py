"""Stages one after another in one process: what they compute together is what the whole model computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runners.parallel.pipeline_cut import find_pipeline_cut
from runners.parallel.stage_model import StageEnd, StageModel
from runners.workloads.gpt import gpt

CPU = torch.device("cpu")


class PairBlock(nn.Module):
    """Returns a tuple, as blocks that can return attention weights do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + torch.tanh(self.layer(x * mask)) * self.scale, None


class Masked(nn.Module):
    """Blocks get a mask that is made of the inputs; the model adds a parameter of its own before them."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.full((4,), 0.5))
        self.layers = nn.Sequential(*(PairBlock() for _ in range(5)))
        self.exit = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = (x > 0).float()
        x = x + self.offset
        for layer in self.layers:
            x = layer(x, mask=mask)[0]
        return self.exit(x).square().mean()


class Chain(nn.Module):
    """Nothing before the blocks, and nn.Sequential runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).square().mean()


def make_gpt() -> nn.Module:
    return gpt(n_layer=4, n_embd=8, n_head=2, vocab_size=16, dropout=0.0)


def gpt_batch() -> dict[str, Any]:
    tokens = torch.randint(0, 16, (2, 7))
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


def vectors() -> dict[str, Any]:
    return {"x": torch.randn(6, 4)}


CASES = {
    "gpt": (make_gpt, gpt_batch, "blocks"),
    "masked": (Masked, vectors, "layers"),
    "chain": (Chain, vectors, "blocks"),
}


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("case", list(CASES))
def test_stages_give_the_whole_models_loss_and_gradients(case: str, num_stages: int) -> None:
    make, make_batch, path = CASES[case]
    torch.manual_seed(1)
    batch = make_batch()
    whole = seeded(make)
    cut = find_pipeline_cut(whole, lambda: whole(**batch), [path], num_stages, num_samples=2)
    loss = whole(**batch)
    loss.backward()

    models = [seeded(make) for _ in range(num_stages)]
    stages = [StageModel(model, cut, number, CPU) for number, model in enumerate(models)]
    sent: list[torch.Tensor] = []
    received: list[torch.Tensor] = []
    output: torch.Tensor | None = None
    for model, stage in zip(models, stages, strict=True):
        try:
            output = stage.run(lambda model=model: model(**batch))
        except StageEnd as end:
            sent.append(end.hidden)
            received.append(end.hidden.detach().requires_grad_())
            if stage is not stages[-1]:
                stages[stages.index(stage) + 1].received = received[-1]
    assert output is not None
    assert torch.equal(output, loss)
    output.backward()
    for hidden, leaf in zip(reversed(sent), reversed(received), strict=True):
        hidden.backward(leaf.grad)

    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
    assert {name for stage in stages for name in stage.held} == set(expected)
    for name, gradient in expected.items():
        parts = [stage.held[name].grad for stage in stages if name in stage.held]
        assert len(parts) == (2 if name == "token_embedding.weight" else 1), name
        torch.testing.assert_close(sum(parts), gradient)


def test_a_stage_holds_nothing_of_the_others() -> None:
    whole = make_gpt()
    batch = gpt_batch()
    cut = find_pipeline_cut(whole, lambda: whole(**batch), ["blocks"], 3, num_samples=2)
    sizes = []
    for stage in range(3):
        model = make_gpt()
        StageModel(model, cut, stage, CPU)
        sizes.append(sum(parameter.nbytes for parameter in model.parameters()))
        own = {name.split(".")[1] for name, _ in model.named_parameters() if name.startswith("blocks.")}
        assert own == {str(block) for block in cut.blocks_of(stage)}
    of_block = sum(parameter.nbytes for parameter in whole.blocks[0].parameters())
    assert sizes == [of_block * len(cut.blocks_of(n)) + cut.outside_bytes[n] for n in range(3)]


def test_what_several_stages_use_is_shared_and_what_none_trains_is_not() -> None:
    model = make_gpt()
    model.unused = nn.Parameter(torch.zeros(3))
    batch = gpt_batch()
    cut = find_pipeline_cut(model, lambda: model(**batch), ["blocks"], 2, num_samples=2)
    stage = StageModel(model, cut, 1, CPU)
    assert stage.shared == {"token_embedding.weight": (0, 1)}
    assert stage.whole["unused"].stages == (0, 1)


def test_before_the_blocks_a_later_stage_keeps_nothing_for_backward() -> None:
    model = Masked()
    batch = vectors()
    cut = find_pipeline_cut(model, lambda: model(**batch), ["layers"], 2, num_samples=6)
    stage = StageModel(model, cut, 1, CPU)
    recorded: list[bool] = []
    model.layers[0].register_forward_pre_hook(lambda *_: recorded.append(torch.is_grad_enabled()))
    model.exit.register_forward_pre_hook(lambda *_: recorded.append(torch.is_grad_enabled()))
    stage.received = torch.randn(6, 4, requires_grad=True)
    output = stage.run(lambda: model(**batch))
    assert recorded == [False, True]
    assert output.requires_grad
    assert torch.is_grad_enabled()
