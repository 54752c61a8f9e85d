"""Operations that treat autograd in a way of their own."""

from __future__ import annotations

from typing import Any

import torch
from stack import WIDTH, Block, Stack, Unit
from torch import nn
from torch.utils.checkpoint import checkpoint


class _TwiceUnpacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if ctx.saved_tensors[0].numel() == 0:
            return gradient
        return 2 * ctx.saved_tensors[0] * gradient


class SquareUnit(Unit):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.1 * self.down(_TwiceUnpacked.apply(self.up(x)))


def saved_tensors_read_twice() -> nn.Module:
    return Stack(Block(mlp=SquareUnit()) for _ in range(3))


class OwnRecompute(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.unit = Unit(nn.Dropout(0.2))

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return self.unit(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._run, x, use_reentrant=False)


def recomputes_itself() -> nn.Module:
    return Stack(Block(attn=OwnRecompute()) for _ in range(3))


class Words(nn.Module):
    """An embedding with sparse gradients before the blocks; inputs are whole numbers only."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH, sparse=sparse)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return {"loss": nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten()), "hidden": x}

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        return {name: torch.randint(0, 50, (micro_batch_size, 5)) for name in ("ids", "labels")}


def words(sparse: bool = False) -> nn.Module:
    return Words(sparse)


class WeightedWords(Words):
    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        return {**super().forward(ids, labels), "loss_weight": labels.numel()}


def weighted_words(sparse: bool = False) -> nn.Module:
    return WeightedWords(sparse)


class TiedWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 200, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        return {name: torch.randint(0, 200, (micro_batch_size, 5)) for name in ("ids", "labels")}


def tied_words() -> nn.Module:
    return TiedWords()
