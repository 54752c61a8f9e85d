"""Blocks that keep something between calls."""

from __future__ import annotations

from typing import Any

import torch
from stack import WIDTH, Block, Stack, Unit
from torch import nn


class CachedAttention(nn.Module):
    """Looks back at all keys that the cache of this forward pass holds, its own included."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        cache.append((k, v))
        keys, values = (torch.cat(parts) for parts in zip(*cache, strict=True))
        return torch.softmax(q @ keys.T, dim=-1) @ values


class CachedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = CachedAttention()
        self.mlp = Unit()

    def forward(self, x: torch.Tensor, cache: list[Any]) -> torch.Tensor:
        x = x + self.attn(x, cache)
        return x + self.mlp(x)


class CachedModel(Stack):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, [])
        return (x - target).square().mean()


def growing_cache() -> nn.Module:
    return CachedModel(CachedBlock() for _ in range(3))


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unit = Unit()

    def forward(self, x: torch.Tensor, shared: dict[str, torch.Tensor]) -> torch.Tensor:
        x = x + self.unit(x)
        shared["memory"] = torch.tanh(x)
        return x


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unit = Unit()

    def forward(self, x: torch.Tensor, shared: dict[str, torch.Tensor]) -> torch.Tensor:
        return x + self.unit(x + shared["memory"])


class Talking(Stack):
    """Encoder blocks leave something in a dict that decoder blocks read."""

    def __init__(self) -> None:
        super().__init__(Writer() for _ in range(2))
        self.readers = nn.ModuleList(Reader() for _ in range(2))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        shared: dict[str, torch.Tensor] = {}
        for block in self.blocks:
            x = block(x, shared)
        y = target
        for block in self.readers:
            y = block(y, shared)
        return (x - y).square().mean()


def shared_container() -> nn.Module:
    return Talking()


class MovingCentre(nn.Module):
    """Subtracts a running centre, then moves it."""

    def __init__(self, momentum: float, replaces: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("centre", torch.zeros(WIDTH))
        self.momentum = momentum
        self.replaces = replaces

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        y = torch.tanh(h - self.centre)
        with torch.no_grad():
            moved = self.centre + self.momentum * (h.mean(dim=0) - self.centre)
            if self.replaces:
                self.centre = moved
            else:
                self.centre.copy_(moved)
        return x + y


def moving_centre(momentum: float = 0.3, replaces: bool = False) -> nn.Module:
    return Stack(MovingCentre(momentum, replaces) for _ in range(2))


class Counter(nn.Module):
    """Counts its calls in a buffer that is a new tensor each time; nothing else depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = Unit()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x + self.unit(x)


def call_counter() -> nn.Module:
    return Stack(Counter() for _ in range(2))


class InPlaceInput(nn.Module):
    """Edits its input, which recompute would need unedited."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = Unit()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(0.5) + self.unit(x)


class InPlaceModel(Stack):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(x * 1.0, target)


def edited_input() -> nn.Module:
    return InPlaceModel(InPlaceInput() for _ in range(2))


def plain_with_constant_buffers() -> nn.Module:
    """Buffers as masks and caches are: with infinities, booleans and nothing at all."""
    model = Stack(Block() for _ in range(2))
    mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
    model.register_buffer("mask", mask)
    model.register_buffer("flags", torch.tensor([True, False]))
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("absent", None)
    return model


class KeepsGraph(Stack):
    """Keeps a tensor for logging whose graph no backward goes through, so that what it saved stays alive."""

    def __init__(self) -> None:
        super().__init__(Block() for _ in range(2))
        self.probe = nn.Linear(WIDTH, 64 * WIDTH)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.last = torch.tanh(torch.tanh(self.probe(x))).sum()
        return super().forward(x, target)


def kept_graph() -> nn.Module:
    return KeepsGraph()
