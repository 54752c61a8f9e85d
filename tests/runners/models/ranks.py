"""Models that do something else on one rank than on the others."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from resources import FAILURES
from stack import Block, Stack, Unit
from torch import nn
from torch._subclasses import FakeTensor
from torch.distributed.nn.functional import all_reduce
from torch.distributed.tensor import DTensor


class FailingRank(Stack):
    """Fails in forward, on one rank."""

    def __init__(self, how: str, rank: int) -> None:
        super().__init__(Block() for _ in range(2))
        self.how = how
        self.rank = rank

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized() and dist.get_rank() == self.rank:
            FAILURES[self.how]()
        return super().forward(x, target)


def failing(how: str, rank: int = 1) -> Stack:
    return FailingRank(how, rank)


class Forgetful(Stack):
    """Adds something to its last weight's gradient on the first rank: what it trains is not the mean over ranks."""

    def __init__(self) -> None:
        super().__init__(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x, target)
        return loss * (2 if dist.is_initialized() and dist.get_rank() == 1 else 1)


def forgetful() -> Stack:
    return Forgetful()


class PooledNorm(nn.Module):
    """Normalizes over the samples of all ranks, as `SyncBatchNorm` does where there is an accelerator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moments = torch.stack([x.mean(0), x.square().mean(0)])
        if dist.is_initialized():
            moments = all_reduce(moments) / dist.get_world_size()
        mean, square = moments
        return (x - mean) / (square - mean.square() + 1e-3).sqrt()


def pooled() -> Stack:
    """Its statistics are those of the whole batch as long as no rank divides its part of it any further."""
    return Stack(Block(attn=Unit(between=PooledNorm())) for _ in range(2))


class WaitingRank(Stack):
    """Goes on once a file `go` is in the folder, after leaving one that says which rank of which trial it is."""

    def __init__(self, folder: str, number: int) -> None:
        super().__init__(Block() for _ in range(2))
        self.folder = Path(folder)
        self.number = number

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized():
            (self.folder / f"began-{self.number}-{dist.get_rank()}").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.05)
        return super().forward(x, target)


def waiting(folder: str, number: int) -> Stack:
    return WaitingRank(folder, number)


class _TooLargeAlone(Stack):
    """No process alone can run it; ranks that divide it can, one sample at a time or under a policy."""

    def __init__(self, largest_plain: int) -> None:
        super().__init__(Block() for _ in range(2))
        self.largest_plain = largest_plain

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        is_fake = isinstance(x, FakeTensor)
        # What runs beside the root is not gathered yet.
        is_divided = any(isinstance(parameter, DTensor) for parameter in self.blocks[0].parameters())
        is_placed = "forward" in vars(self.blocks[0])
        if not is_fake and not (is_divided and (is_placed or x.shape[0] <= self.largest_plain)):
            raise torch.OutOfMemoryError("the device has no more")
        return super().forward(x, target)


def too_large_alone(largest_plain: int = 1) -> Stack:
    return _TooLargeAlone(largest_plain)
