"""Operators that a search file names and no block runs are refused before anything is searched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runners.base import WorkloadError
from runners.inspect_model import inspect_model
from runners.workloads.gpt import gpt
from search_spaces.choices import SearchChoices


def inspect(*actions: str) -> None:
    model = gpt(n_layer=2, n_embd=32, n_head=2, vocab_size=32)
    tokens = torch.randint(32, (2, 8))
    inspect_model(model, run_step=lambda: model(tokens, tokens), keep_sets=actions)


def test_operators_that_no_block_runs() -> None:
    action = "selective:aten._scaled_dot_product_flash_attention.default"
    said = rf"^placement\.actions names {action}, but no block runs such an operator; they run .*aten\.addmm"
    with pytest.raises(WorkloadError, match=said):
        inspect("selective", action)


def test_operators_that_torch_does_not_have() -> None:
    said = r"^placement\.actions names selective:.*, but this torch has no operator aten\.nosuch\.default; "
    with pytest.raises(WorkloadError, match=said):
        inspect("selective:aten.addmm.default+aten.nosuch.default")


def test_one_of_several_that_runs_is_enough() -> None:
    inspect("selective:matmuls", "selective:aten.addmm.default[::2]+aten.bmm.default")


class TwoKinds(nn.Module):
    """One list whose blocks multiply matrices, one whose blocks do not."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.light = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Tanh()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.dense, *self.light):
            x = block(x)
        return x.square().mean()


def test_operators_of_one_list_are_no_action_of_the_other() -> None:
    model = TwoKinds()
    keep = "selective:aten.addmm.default"
    inspected = inspect_model(
        model, run_step=lambda: model(torch.ones(2, 8)), blocks=("dense", "light"), keep_sets=(keep,)
    )
    choices = SearchChoices(inspected.shape, 2, (2,), ("none", keep, "block"))
    dense, light = choices.block_lists
    assert keep in dense.actions
    assert light.actions == ("none", "block")
    assert choices.notes() == (f"light: action {keep} is not tried: its blocks run none of these operators.",)
