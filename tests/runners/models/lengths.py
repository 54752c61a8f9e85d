"""A model of sequences that knows how long they are, and batches of a length that is asked for."""

from __future__ import annotations

import os

import torch
from stack import WIDTH, Block, Stack
from torch import nn

#: Below this many tokens a faulty block goes wrong.
_SHORT = 6


class Sequences(Stack):
    """Blocks over sequences; writes the length of every forward pass to a file where it is told one."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        log = os.environ.get("LENGTHS_LOG")
        if log is not None:
            with open(log, "a") as lines:
                lines.write(f"{x.shape[1]}\n")
        return super().forward(x, target)

    def example_batch(self, micro_batch_size: int, sequence_length: int) -> dict[str, torch.Tensor]:
        return batch(micro_batch_size, sequence_length)


class WrongWhenShort(Block):
    """Counts its calls, the rebuild's too, where the sequence is short."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < _SHORT:
            self.calls += 1
        return super().forward(x)


class SumsWhenShort(Sequences):
    """Its loss is a mean over samples, save where the sequences are short."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x, target)
        return loss * x.shape[0] if x.shape[1] < _SHORT else loss


def sequences(num_blocks: int = 3) -> nn.Module:
    return Sequences(Block() for _ in range(num_blocks))


def wrong_when_short(num_blocks: int = 3) -> nn.Module:
    return Sequences(WrongWhenShort() for _ in range(num_blocks))


def sums_when_short(num_blocks: int = 3) -> nn.Module:
    return SumsWhenShort(Block() for _ in range(num_blocks))


def batch(micro_batch_size: int, sequence_length: int) -> dict[str, torch.Tensor]:
    return {name: torch.randn(micro_batch_size, sequence_length, WIDTH) for name in ("x", "target")}


def batch_of_one_length(micro_batch_size: int) -> dict[str, torch.Tensor]:
    return batch(micro_batch_size, 8)


def padded_batch(micro_batch_size: int, sequence_length: int) -> dict[str, torch.Tensor]:
    return batch(micro_batch_size, 64)
