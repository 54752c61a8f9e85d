"""Blocks whose MLPs and norms are written in the ways that occur: gated or not, norms fused or in plain operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 16


class PlainNorm(nn.Module):
    """Root mean square, from single operations, as transformers' models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        scaled: torch.Tensor = self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return scaled


class Adapted(nn.Module):
    """A projection with a low-rank adapter that drops a part of its input."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.base = nn.Linear(given, wanted)
        self.low = nn.Linear(given, 2)
        self.high = nn.Linear(2, wanted)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.base(x) + self.high(self.low(self.dropout(x)))
        return adapted


class Mlp(nn.Module):
    def __init__(self, gated: bool, adapted: bool = False, inplace: bool = False) -> None:
        super().__init__()
        projection = Adapted if adapted else nn.Linear
        self.up = projection(WIDTH, 3 * WIDTH)
        self.gate = projection(WIDTH, 3 * WIDTH) if gated else None
        self.dropout = nn.Dropout(0.2)
        self.down = projection(3 * WIDTH, WIDTH)
        self.last_dropout = nn.Dropout(0.2)
        self.inplace = inplace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inplace:
            wide = F.relu(self.up(x), inplace=True)
        elif self.gate is None:
            wide = F.gelu(self.up(x))
        else:
            wide = F.silu(self.gate(x)) * self.up(x)
        narrowed: torch.Tensor = self.last_dropout(self.down(self.dropout(wide)))
        return narrowed


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed: torch.Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    def __init__(self, mlp: Mlp, plain_norm: bool) -> None:
        super().__init__()
        self.norm_1 = PlainNorm() if plain_norm else nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.norm_2 = PlainNorm() if plain_norm else nn.LayerNorm(WIDTH)
        self.mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x))
        widened: torch.Tensor = self.mlp(self.norm_2(x))
        return x + widened


class Stack(nn.Module):
    def __init__(
        self, *, gated: bool, plain_norm: bool, adapted: bool = False, inplace: bool = False, num_blocks: int = 2
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(Mlp(gated, adapted, inplace), plain_norm) for _ in range(num_blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()


class Widening(nn.Module):
    """The first half of an MLP, as encoders have it: a projection and its activation in a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, 3 * WIDTH)
        self.activation = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = self.activation(self.dense(x))
        return wide


class Narrowing(nn.Module):
    """The second half."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, wide: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        narrowed: torch.Tensor = self.dropout(self.dense(wide))
        return x + narrowed


class NormedAttention(nn.Module):
    """Gives what its last norm gave, beside weights that nobody asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.norm(x + self.dropout(self.inner(x))), None


class EncoderBlock(nn.Module):
    """No module holds the whole MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = NormedAttention()
        self.widening = Widening()
        self.narrowing = Narrowing()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.attn(x)
        narrowed: torch.Tensor = self.narrowing(self.widening(x), x)
        return narrowed


class Encoder(nn.Module):
    def __init__(self, num_blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock() for _ in range(num_blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()
