"""The plainest model with a list of blocks, for factories of this folder to build on."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

WIDTH = 8


class Unit(nn.Module):
    """Two matrices with something in between."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.between = between if between is not None else nn.Tanh()
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.between(self.up(x)))


class Block(nn.Module):
    """Residual attention-like and MLP-like units."""

    def __init__(self, attn: nn.Module | None = None, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.attn = attn if attn is not None else Unit()
        self.mlp = mlp if mlp is not None else Unit()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class Stack(nn.Module):
    """Blocks in a row and the mean squared distance to a target."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return (x - target).square().mean()

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        dtype = next(self.parameters()).dtype
        return {name: torch.randn(micro_batch_size, WIDTH, dtype=dtype) for name in ("x", "target")}


def plain(num_blocks: int = 3) -> Stack:
    return Stack(Block() for _ in range(num_blocks))
