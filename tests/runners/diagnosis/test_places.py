from __future__ import annotations

import torch
from torch import nn

from runners.diagnosis.places import Place, Places, PlaceStack
from search_spaces.model_shape import BlockList, ModelShape


class Block(nn.Module):
    """One unit is a module, the other one a method with a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(2, 2)
        self.wide = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.feed(self.attn(x))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x)


class Model(nn.Module):
    """A block that stands at two positions, with another one between."""

    def __init__(self) -> None:
        super().__init__()
        shared = Block()
        self.embed = nn.Linear(2, 2)
        self.h = nn.ModuleList([shared, Block(), shared])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.h:
            x = block(x)
        return x


SHAPE = ModelShape(1, (BlockList("h", "Block", 3, (("attention", "attn"), ("mlp", "feed()"))),))


def followed(model: Model) -> list[Place | None]:
    """Where the code lay, at each change while it was in a module."""
    stack = PlaceStack(Places(model, SHAPE))
    seen: list[Place | None] = []
    stack.on_change = lambda: seen.append(stack.top)
    with stack.following():
        model(torch.zeros(1, 2))
    return seen


def test_places_are_told_by_path() -> None:
    places = Places(Model(), SHAPE)
    assert places.at("embed") == Place("embed")
    assert places.at("h.1.attn") == Place("h.1.attn", "h", 1, "attention")
    assert places.at("h.1") == Place("h.1", "h", 1)
    assert places.of_region("h.1.feed()") == Place("h.1", "h", 1, "mlp")
    assert places.of_region("h.1 to h.2") == Place("h.1", "h", 1)


def test_the_stack_follows_modules_methods_and_repeated_blocks() -> None:
    seen = followed(Model())
    entered = [place for place in dict.fromkeys(seen) if place is not None and place.module]
    assert Place("embed") in entered
    assert Place("h.1.wide", "h", 1, "mlp") in entered, "within a method that is a unit"
    assert {place.block for place in entered if place.blocks} == {0, 1, 2}, "each position in turn"
    assert seen[-1] is None


def test_nothing_of_the_model_is_changed_afterwards() -> None:
    model = Model()
    before = {id(module): dict(vars(module)) for module in model.modules()}
    followed(model)
    assert {id(module): dict(vars(module)) for module in model.modules()} == before
