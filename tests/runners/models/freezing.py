"""Models of which only a part is trained, or trained in some steps only."""

from __future__ import annotations

import torch
from stack import WIDTH, Block, Stack, Unit
from torch import nn


class Adapted(nn.Module):
    """A frozen MLP with a trainable low-rank path beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Unit()
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def adapters() -> nn.Module:
    model = Stack(Block(mlp=Adapted()) for _ in range(3))
    model.requires_grad_(False)
    for block in model.blocks:
        block.mlp.down.requires_grad_(True)
        block.mlp.up.requires_grad_(True)
    return model


class Alternating(Stack):
    """A second head is used only where the first input value is positive."""

    def __init__(self) -> None:
        super().__init__(Block() for _ in range(2))
        self.extra = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x, target)
        return loss + self.extra(x).square().mean() if float(x[0, 0]) > 0 else loss


def unused_in_some_steps() -> nn.Module:
    return Alternating()


class Tower(Stack):
    """A frozen tower in eval mode whose output feeds trained blocks."""

    def __init__(self) -> None:
        super().__init__(Block(mlp=Unit(nn.Dropout(0.3))) for _ in range(2))
        self.tower = nn.ModuleList(Block(mlp=Unit(nn.Dropout(0.3))) for _ in range(2))
        self.tower.requires_grad_(False).eval()
        self.calls: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for block in self.tower:
            x = block(x)
        return super().forward(x, target)


def frozen_tower() -> nn.Module:
    return Tower()
