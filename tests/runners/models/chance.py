"""Blocks that draw random numbers, from torch's generators and from others."""

from __future__ import annotations

import os
import random

import numpy as np
import torch
from stack import WIDTH, Block, Stack, Unit
from torch import nn


def dropout(p: float = 0.2) -> nn.Module:
    return Stack(Block(mlp=Unit(nn.Dropout(p))) for _ in range(3))


class Experts(nn.Module):
    """Top-1 routing with a little noise that is not torch's; tokens are gathered by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        noise = torch.tensor([random.gauss(0.0, 0.5) for _ in range(scores.numel())]).view_as(scores)
        choice = (scores + noise).argmax(dim=-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = choice == index
            out[chosen] = torch.tanh(expert(x[chosen]))
        return out


def noisy_routing() -> nn.Module:
    return Stack(Block(mlp=Experts()) for _ in range(2))


class MaybeBlock(Block):
    """Skips its MLP by a decision of its own."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x)
        draw = float(torch.rand(())) if self.source == "torch" else random.random()
        return x if draw < 0.4 else x + self.mlp(x)


def layer_drop_inside(source: str) -> nn.Module:
    return Stack(MaybeBlock(source) for _ in range(4))


class DroppingParent(Stack):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if random.random() >= 0.4:
                x = block(x)
        return (x - target).square().mean() + 0.0 * next(self.parameters()).sum()


def layer_drop_outside() -> nn.Module:
    return DroppingParent(Block() for _ in range(4))


class Unrepeatable(Stack):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        noise = torch.frombuffer(bytearray(os.urandom(x.numel())), dtype=torch.uint8).view_as(x) / 255.0
        return super().forward(x + noise, target)


def unrepeatable() -> nn.Module:
    return Unrepeatable(Block() for _ in range(2))


class NumpyNoise(Stack):
    """Draws one number per sample where silencing does not reach."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        noise = torch.from_numpy(np.random.randn(*x.shape)).float()
        return super().forward(x + noise, target)


def numpy_noise() -> nn.Module:
    return NumpyNoise(Block() for _ in range(2))


class RandomLengths(Stack):
    """A number drawn between bounds that do not hold 0 decides what is averaged."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        length = torch.randint(2, WIDTH, (1,))
        scale = torch.empty(1).uniform_(5.0, 7.0)
        if not 5.0 <= float(scale) <= 7.0:
            raise ValueError(f"scale {float(scale)} was drawn outside of 5 to 7")
        for block in self.blocks:
            x = block(x)
        distances = (x - target).square()[:, : int(length)] / scale
        return distances.sum() / (int(length) * x.shape[0])


def random_lengths() -> nn.Module:
    return RandomLengths(Block() for _ in range(2))
