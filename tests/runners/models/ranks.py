"""Models that do something else on one rank than on the others."""

from __future__ import annotations

import torch
import torch.distributed as dist
from resources import FAILURES
from stack import Block, Stack


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
