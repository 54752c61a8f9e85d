"""A model and data of one's own, for `examples/own_model.yaml`: a mixer that forecasts many series at once.

`tune` calls two functions here. `build_model` is called anew for each trial and returns the model; `make_batch` returns
the model's keyword arguments for so many samples. Both run under fixed seeds, so every trial sees the same data.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

NUM_STEPS = 64
NUM_SERIES = 32


def build_model(num_blocks: int = 6, width: int = 128, dropout: float = 0.1) -> Forecaster:
    """The model to train; its arguments are `model.args` in the search file."""
    return Forecaster(num_blocks, width, dropout)


def make_batch(micro_batch_size: int) -> dict[str, torch.Tensor]:
    """The inputs of one forward pass: past values, shape (B, T, S), and the next ones to predict, shape (B, S)."""
    start = torch.rand(micro_batch_size, 1, NUM_SERIES) * 6.28
    step = torch.rand(micro_batch_size, 1, NUM_SERIES) * 0.5
    values = torch.sin(start + step * torch.arange(NUM_STEPS + 1).view(1, -1, 1))
    return {"past": values[:, :-1], "target": values[:, -1]}


class Forecaster(nn.Module):
    """Embeds each time step, mixes along time and along width, and reads the next value off the last step."""

    def __init__(self, num_blocks: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Linear(NUM_SERIES, width)
        self.layers = nn.ModuleList(MixerBlock(width, dropout) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_SERIES)

    def forward(self, past: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(past)
        for layer in self.layers:
            x = layer(x)
        prediction = self.head(self.norm(x[:, -1]))
        return {"loss": F.mse_loss(prediction, target), "prediction": prediction}


class MixerBlock(nn.Module):
    """Mixes along time, then along width; the search file names these two halves as units."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.over_time = Mixing(NUM_STEPS, dropout)
        self.over_width = Mixing(width, dropout)
        self.norm_1 = nn.LayerNorm(width)
        self.norm_2 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.over_time(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        mixed: torch.Tensor = self.over_width(self.norm_2(x))
        return x + mixed


class Mixing(nn.Module):
    """Widens the last dimension, GELU, narrows it again."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(size, 3 * size)
        self.narrow = nn.Linear(3 * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrowed: torch.Tensor = self.dropout(self.narrow(F.gelu(self.widen(x))))
        return narrowed
