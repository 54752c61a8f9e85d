"""Layers that keep statistics of the samples they saw."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Counted(nn.Module):
    """Counts its calls where no library can know of it."""

    num_calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num_calls", torch.tensor(0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return images.square()


class ConvNet(nn.Module):
    def __init__(self, make_norm: Callable[[], nn.Module] = lambda: nn.BatchNorm2d(3)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), make_norm(), nn.ReLU()) for _ in range(3)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            images = block(images)
        return images.square().mean()

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        return {"images": torch.randn(micro_batch_size, 3, 8, 8)}


def training_statistics() -> nn.Module:
    return ConvNet()


def own_statistics() -> nn.Module:
    return ConvNet(Counted)


def frozen_statistics() -> nn.Module:
    model = ConvNet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model
