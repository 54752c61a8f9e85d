"""Operators that a search file names and no block runs are refused before anything is searched."""

from __future__ import annotations

import pytest
import torch

from runners.base import WorkloadError
from runners.inspect_model import inspect_model
from runners.workloads.gpt import gpt


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
