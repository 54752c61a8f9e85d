"""Models of which every tensor that is kept for backward is known by hand.

Samples are rows: x has shape (B, 8) with B samples, float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, WIDE = 8, 16


class Attention(nn.Module):
    """Each sample attends to all samples of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = (q @ k.T).softmax(dim=-1)
        return weights @ v


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrowed: torch.Tensor = self.down(self.dropout(F.gelu(self.up(x))))
        return narrowed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x))
        widened: torch.Tensor = self.mlp(self.norm_2(x))
        return x + widened


class InPlaceBlock(nn.Module):
    """Keeps one storage twice: the convolution's successor edits it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDE), nn.ReLU(inplace=True), nn.Linear(WIDE, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        widened: torch.Tensor = self.mlp(x)
        return x + widened


class Square(torch.autograd.Function):
    """Saves its input, and hides twice of it in an attribute."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.doubled = 2 * x
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * ctx.doubled + 0 * x


class SquareBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squared: torch.Tensor = Square.apply(self.mlp(x))
        return squared


class Chain(nn.Module):
    """Blocks between an embedding and the mean."""

    def __init__(self, blocks: list[nn.Module], *, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH, sparse=sparse)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        loss: torch.Tensor = x.square().mean()
        return loss


class Refusing(nn.Module):
    """Asks for more memory than there is, unless its first block is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.ones(len(tokens), WIDTH)
        if type(self.blocks[0].forward).__name__ != "RecomputedCall":
            torch.empty(2**62, dtype=torch.uint8)
        loss: torch.Tensor = self.blocks[0](x).mean()
        return loss


def blocks(num_blocks: int = 2) -> nn.Module:
    return Chain([Block() for _ in range(num_blocks)])


def in_place() -> nn.Module:
    return Chain([InPlaceBlock(), InPlaceBlock()])


def squares() -> nn.Module:
    return Chain([SquareBlock(), SquareBlock()])


def sparse() -> nn.Module:
    return Chain([InPlaceBlock(), InPlaceBlock()], sparse=True)


def refusing() -> nn.Module:
    return Refusing()


def batch(micro_batch_size: int) -> dict[str, Any]:
    return {"tokens": torch.arange(micro_batch_size)}
