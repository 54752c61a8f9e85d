"""A block that draws random numbers in an operator of its own, which does not say that it draws."""

from __future__ import annotations

import torch
from stack import Block, Stack, Unit
from torch import library, nn


@library.custom_op("recompute_tuner_tests::mask_like", mutates_args=())
def mask_like(x: torch.Tensor) -> torch.Tensor:
    """Draws, and carries no tag that says so."""
    return (torch.rand(x.shape) < 0.5).to(x.dtype)


@mask_like.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class UnannouncedDropout(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * mask_like(x.detach())


def unannounced_dropout() -> nn.Module:
    return Stack(Block(mlp=Unit(UnannouncedDropout())) for _ in range(2))
