"""Models and batches of unusual shape."""

from __future__ import annotations

from typing import Any

import torch
from stack import WIDTH, Block, Stack
from torch import nn


def samples_second(micro_batch_size: int) -> dict[str, Any]:
    """Time first, samples second; the time is as long as a batch of four is wide."""
    return {"x": torch.randn(4, micro_batch_size, WIDTH), "target": torch.randn(4, micro_batch_size, WIDTH)}


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, inputs: dict[str, Any], scale: float, names: list[str]) -> Any:
        x = inputs["parts"][0] + inputs["parts"][1]
        for block in self.blocks:
            x = block(x)
        assert len(names) == x.shape[0]
        per_sample = torch.stack([torch.tensor(float(name)) for name in names])
        return {"loss": (x.square().mean(dim=1) * per_sample).mean() * scale, "x": x}


def nested() -> nn.Module:
    return Nested()


def nested_batch(micro_batch_size: int) -> dict[str, Any]:
    parts = [torch.randn(micro_batch_size, WIDTH) for _ in range(2)]
    return {"inputs": {"parts": parts}, "scale": 0.5, "names": [str(i % 3) for i in range(micro_batch_size)]}


class Indifferent(Stack):
    def __init__(self) -> None:
        super().__init__(Block() for _ in range(2))
        self.register_buffer("data", torch.randn(4, WIDTH))

    def forward(self, seed: int) -> torch.Tensor:
        return super().forward(self.data + seed, self.data)


def indifferent() -> nn.Module:
    return Indifferent()


def no_samples(micro_batch_size: int) -> dict[str, Any]:
    return {"seed": 1}


def packed(micro_batch_size: int) -> dict[str, Any]:
    """All samples' tokens in one row of tensors, as packed sequences and image patches come."""
    rows = 3 * micro_batch_size
    return {"x": torch.randn(rows, WIDTH), "target": torch.randn(rows, WIDTH)}
