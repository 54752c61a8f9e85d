"""A small model with attention and an MLP in each block, and how it is inspected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from runners.inspect_model import InspectedModel, inspect_model
from search_spaces.model_shape import BlockList

WIDTH = 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.sa = Attention()
        self.ln2 = nn.LayerNorm(WIDTH)
        self.ffwd = FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class Model(nn.Module):
    """Blocks one after another; a subclass changes how they are called."""

    def __init__(self, blocks: nn.Module | None = None) -> None:
        super().__init__()
        self.inlet = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4)) if blocks is None else blocks
        self.head = nn.Linear(WIDTH, 1)

    def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run_blocks(self.inlet(x))).mean()


def inspect(
    model: nn.Module, blocks: Sequence[str] | None = None, units: Mapping[str, str] | None = None, **inputs: Any
) -> InspectedModel:
    inputs = inputs or {"x": torch.randn(2, 5, WIDTH)}
    return inspect_model(model, run_step=lambda: model(**inputs), blocks=blocks, units=units)


def only_list(model: nn.Module, **options: Any) -> BlockList:
    (found,) = inspect(model, **options).shape.block_lists
    return found
