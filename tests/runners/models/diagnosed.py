"""Models whose kept tensors and floors can be counted by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Mlp(nn.Module):
    """Keeps the output of `up` (for GELU) and that of GELU (for `down`)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Squash(nn.Module):
    """Tanh keeps its own output, which whoever comes next keeps as well; nothing within is kept besides."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


class Block(nn.Module):
    """Keeps `attn`'s output, and what the MLP keeps; its own output is the next block's to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Squash()
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.attn(x))


class Ladder(nn.Module):
    """Blocks, then a head that keeps the last block's output, and a classifier's loss."""

    def __init__(self, blocks: Iterable[nn.Module], num_classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), labels)

    def example_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        labels = torch.randint(0, self.head.out_features, (micro_batch_size,))
        return {"x": torch.randn(micro_batch_size, WIDTH), "labels": labels}


class FusedAttention(nn.Module):
    """Causal attention of a single head over the batch as a sequence, by torch's own kernel."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part[None, None] for part in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)[0, 0]


class SoftmaxAttention(nn.Module):
    """The same by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return (q @ k.T / WIDTH**0.5).softmax(-1) @ v


class TorchsModule(nn.Module):
    """Attention by `nn.MultiheadAttention`."""

    def __init__(self, dropout: float, need_weights: bool) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(WIDTH, 2, dropout=dropout)
        self.need_weights = need_weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads(x, x, x, need_weights=self.need_weights)[0]


class AttentionBlock(nn.Module):
    """Residual attention and MLP."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.attn = attn
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class SelfCheckpointed(Ladder):
    """Recomputes its first block by itself."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.blocks[0], x, use_reentrant=False)
        for block in self.blocks[1:]:
            x = block(x)
        return F.cross_entropy(self.head(x), labels)


class Counting(nn.Module):
    """Batch statistics, and a draw from Python's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.mlp = Mlp()
        self.drop = nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.mlp(self.attn(x))) * (1 + random.random())


class Slow(Mlp):
    """Waits before it computes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().forward(x)


class SlowForMany(Mlp):
    """Waits a second where the batch has more than four samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(1.0 if len(x) > 4 else 0.0)
        return super().forward(x)


def slow_for_many() -> Ladder:
    return Ladder((AttentionBlock(SlowForMany()) for _ in range(2)), 8)


def slow(attn_s: float, mlp_s: float) -> Ladder:
    blocks = [AttentionBlock(Slow(attn_s)) for _ in range(2)]
    for block in blocks:
        block.mlp = Slow(mlp_s)
    return Ladder(blocks, 8)


def ladder(num_blocks: int = 4, num_classes: int = 8) -> Ladder:
    return Ladder((Block() for _ in range(num_blocks)), num_classes)


def fused(dropout: float = 0.0) -> Ladder:
    return Ladder((AttentionBlock(FusedAttention(dropout)) for _ in range(2)), 8)


def by_hand() -> Ladder:
    return Ladder((AttentionBlock(SoftmaxAttention()) for _ in range(2)), 8)


def torchs_module(dropout: float = 0.0, need_weights: bool = False) -> Ladder:
    return Ladder((AttentionBlock(TorchsModule(dropout, need_weights)) for _ in range(2)), 8)


def self_checkpointed() -> Ladder:
    return SelfCheckpointed((Block() for _ in range(2)), 8)


def counting() -> Ladder:
    return Ladder((Counting() for _ in range(2)), 8)


def one_block_twice() -> Ladder:
    block = Block()
    return Ladder([block, Block(), block], 8)
