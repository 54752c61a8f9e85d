"""Models whose kernels take memory that no tensor shows: convolutions, attention with a mask, recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Tagger(nn.Module):
    """Its layers are copies of one another, as `nn.TransformerEncoder` makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(64, 5)

    def forward(self, tokens: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tags.flatten())


def tagger() -> nn.Module:
    return Tagger()


def padded(micro_batch_size: int) -> dict[str, Any]:
    tokens = torch.randint(1, 50, (micro_batch_size, 48))
    tokens[:, 40:] = 0
    return {"tokens": tokens, "tags": torch.randint(0, 5, (micro_batch_size, 48))}


class ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.relu(self.norm(self.conv(x)))


class Painter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(24) for _ in range(3)))
        self.last = nn.Conv2d(24, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.first(image))
        larger = nn.functional.interpolate(hidden, scale_factor=2.0, mode="nearest")
        return nn.functional.mse_loss(self.last(larger), image)


def painter() -> nn.Module:
    return Painter()


def images(micro_batch_size: int) -> dict[str, Any]:
    return {"image": torch.randn(micro_batch_size, 3, 32, 32)}


class RecurrentBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.cell = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.cell(self.norm(x))[0]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RecurrentBlock(48) for _ in range(3))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        hidden = series
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.mse_loss(hidden, series)


def reader() -> nn.Module:
    return Reader()


def series(micro_batch_size: int) -> dict[str, Any]:
    return {"series": torch.randn(micro_batch_size, 20, 48)}
