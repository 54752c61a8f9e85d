"""Losses that a division into micro-batches may change."""

from __future__ import annotations

from typing import Any

import torch
from stack import WIDTH, Block, Stack
from torch import nn


class Tagger(nn.Module):
    """Labels some tokens of each sample: the first has one, the next two, and so on up to four."""

    def __init__(self, weighted: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 5)
        self.weighted = weighted

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())
        return {"loss": loss, "loss_weight": (labels != -100).sum()} if self.weighted else loss

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        labels = torch.randint(0, 5, (micro_batch_size, 4))
        for sample in range(micro_batch_size):
            labels[sample, sample * 4 // micro_batch_size + 1 :] = -100
        dtype = self.head.weight.dtype
        return {"x": torch.randn(micro_batch_size, 4, WIDTH, dtype=dtype), "labels": labels}


def token_mean() -> nn.Module:
    return Tagger(weighted=False)


def token_mean_with_weight() -> nn.Module:
    return Tagger(weighted=True)


class Contrast(Stack):
    """Each sample is told from the others of its micro-batch."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(x @ target.T, torch.arange(x.shape[0]))


def contrastive() -> nn.Module:
    return Contrast(Block() for _ in range(2))


class NotANumber(Stack):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(x, target) * float("nan")


def not_a_number() -> nn.Module:
    return NotANumber(Block() for _ in range(2))


class PolicyGradient(Stack):
    """A loss whose terms cancel over the whole batch: what is left of it is rounding."""

    def forward(self, x: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        value = x.sum(dim=1)
        return (torch.exp(value - value.detach()) * advantage).mean()

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        advantage = torch.randn(micro_batch_size)
        return {"x": torch.randn(micro_batch_size, WIDTH), "advantage": advantage - advantage.mean()}


def cancelling() -> nn.Module:
    return PolicyGradient(Block() for _ in range(2))


class SumOverSamples(Stack):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(x, target) * x.shape[0]


def sum_over_samples() -> nn.Module:
    return SumOverSamples(Block() for _ in range(2))


class BFloat16Only(Stack):
    """Casts its input to the type that its author trained in."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(torch.bfloat16), target.to(torch.bfloat16)).float()


def bfloat16_only() -> nn.Module:
    return BFloat16Only(Block() for _ in range(2))
