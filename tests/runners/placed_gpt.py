"""The built-in GPT under each kind of placement, and what must be the same with and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from runners.workloads.gpt import GPT, gpt
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

NUM_BLOCKS = 5
UNITS = (("attention", "attn"), ("mlp", "mlp"))
PLACEMENTS = {
    "block": (Region(0, 4, "block"),),
    "attention": (Region(0, 4, "attention"),),
    "mlp": (Region(1, 3, "mlp"),),
    "both units": (Region(0, 4, "attention+mlp"),),
    "segments with a shorter last one": (Region(0, 4, "segment", 2),),
    "one segment longer than the list": (Region(0, 4, "segment", 9),),
    "a mixture": (Region(0, 1, "segment", 2), Region(2, 2, "mlp"), Region(4, 4, "block")),
}
placements = pytest.mark.parametrize("regions", PLACEMENTS.values(), ids=PLACEMENTS.keys())


def make_policy(*regions: Region, path: str = "blocks", num_blocks: int = NUM_BLOCKS, rng: bool = True) -> Any:
    placement = BlockListPlacement(path, num_blocks, UNITS, regions)
    return RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,), preserve_rng_state=rng)


def make_model(dropout: float = 0.2) -> GPT:
    torch.manual_seed(0)
    return gpt(n_layer=NUM_BLOCKS, n_embd=16, n_head=2, vocab_size=32, max_sequence_length=16, dropout=dropout)


def make_batch(model: GPT) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return model.example_batch(2, 8)


def gradients(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(2)
    model(**batch).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def surface(model: nn.Module) -> Any:
    """All that other code may hold on to: names, objects, hooks and modes."""
    return (
        [(name, id(module), type(module), module.training) for name, module in model.named_modules()],
        [(name, id(parameter)) for name, parameter in model.named_parameters(remove_duplicate=False)],
        [(name, id(buffer)) for name, buffer in model.named_buffers()],
        [(name, tensor.data_ptr()) for name, tensor in model.state_dict().items()],
        [list(module._forward_hooks) + list(module._forward_pre_hooks) for module in model.modules()],
    )


class Recomputes:
    """Counts the rebuilds of each region."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextmanager
    def recomputing(self, region_name: str) -> Iterator[None]:
        self.names.append(region_name)
        yield
