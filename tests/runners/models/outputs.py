"""Blocks that save their own outputs, and a parent that calls its blocks in another order at random."""

from __future__ import annotations

import random

import torch
from stack import WIDTH, Block, Stack
from torch import nn


class ReluBlock(nn.Module):
    """Ends in a ReLU, which saves what it returns; the next block's matrix saves the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(x))


class Rows(Stack):
    """With enough samples in a row that activations outweigh parameters."""

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        return {name: torch.randn(micro_batch_size, 64, WIDTH) for name in ("x", "target")}


def relu_blocks(num_blocks: int = 4) -> nn.Module:
    return Rows(ReluBlock() for _ in range(num_blocks))


def deep(num_blocks: int) -> nn.Module:
    return Rows(Block() for _ in range(num_blocks))


class SkippingBlock(Block):
    """Leaves its MLP out in every third call."""

    num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SkippingBlock.num_calls += 1
        x = x + self.attn(x)
        return x if SkippingBlock.num_calls % 3 == 0 else x + self.mlp(x)


def skipping() -> nn.Module:
    return Rows(SkippingBlock() for _ in range(4))


class Shuffled(Rows):
    """Calls one of two blocks first, by a decision of Python's own."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        order = [0, 1] if random.random() < 0.5 else [1, 0]
        for index in order:
            x = self.blocks[index](x)
        return (x - target).square().mean()


def shuffled() -> nn.Module:
    return Shuffled(Block() for _ in range(2))
