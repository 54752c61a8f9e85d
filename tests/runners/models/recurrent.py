"""Recurrent blocks."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 16


class RecurrentBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.lstm(x)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RecurrentBlock() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(micro_batch_size, 12, WIDTH)}


def recurrent() -> nn.Module:
    return Recurrent()
