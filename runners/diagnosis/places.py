"""Where in a model something happens: in which block of which list, in which of its units, or in which other module."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from runners.inspection.block_lists import container_at
from runners.inspection.unit_path import resolve_unit
from search_spaces.model_shape import ModelShape
from search_spaces.unit_span import is_spans, parse_spans


@dataclass(frozen=True)
class Place:
    """A part of a model.

    Attributes:
        module: Dotted path of the innermost module; empty for the model itself.
        blocks: Path of the list whose block it is, or lies in; None outside of blocks.
        block: Position in that list.
        unit: Name of the unit that it is, or lies in; None for a block's other parts.
    """

    module: str
    blocks: str | None = None
    block: int | None = None
    unit: str | None = None


class Places:
    """The places of one model.

    Attributes:
        list_paths: Of the lists of blocks, in the order of the forward pass.
        methods: Units that are methods rather than modules: the object, the attribute and the place.
    """

    def __init__(self, model: nn.Module, shape: ModelShape) -> None:
        self.list_paths = [blocks.path for blocks in shape.block_lists]
        self._by_path: dict[str, Place] = {}
        self._by_region: dict[str, Place] = {}
        self._positions: dict[int, list[Place]] = {}
        self.methods: list[tuple[nn.Module, str, Place]] = []
        for blocks in shape.block_lists:
            container = container_at(model.get_submodule(blocks.path), blocks.path)
            for index, (name, block) in enumerate(zip(container.names, container.blocks, strict=True)):
                self._add_block(Place(name, blocks.path, index), block, blocks.units)
        self._paths = {id(module): path for path, module in model.named_modules()}

    @property
    def block_paths(self) -> frozenset[str]:
        """Of all blocks of all lists."""
        return frozenset(place.module for places in self._positions.values() for place in places)

    def of_module(self, module: nn.Module) -> Place | None:
        """The place of a module's own code; None for one that is not registered in the model."""
        path = self._paths.get(id(module))
        return None if path is None else self.at(path)

    def at(self, path: str) -> Place:
        """The place of the module at a dotted path, or of a parameter there."""
        parent = path
        while parent:
            if parent in self._by_path:
                return replace(self._by_path[parent], module=path)
            parent = parent.rpartition(".")[0]
        return Place(path)

    def of_region(self, name: str) -> Place | None:
        """The place of a recompute region; for a segment that of its first block."""
        return self._by_region.get(name.partition(" to ")[0])

    def block_calls(self, module: nn.Module) -> list[Place]:
        """The positions at which a module is a block, in order; empty for any other module."""
        return self._positions.get(id(module), [])

    def _add_block(self, place: Place, block: nn.Module, units: tuple[tuple[str, str], ...]) -> None:
        self._by_path.setdefault(place.module, place)
        self._by_region[f"{place.blocks}.{place.block}"] = place
        self._positions.setdefault(id(block), []).append(place)
        for unit, path in units:
            if is_spans(path):
                # Its parts lie in other units; what it rebuilds is told by the region's name alone.
                for span in parse_spans(path):
                    self._by_region[f"{place.blocks}.{place.block}.{span}"] = replace(place, unit=unit)
                continue
            owner, attribute = resolve_unit(block, path)
            # The code of a method is that of the module that has it.
            module = path.removesuffix("()").rpartition(".")[0] if path.endswith("()") else path
            of_unit = replace(place, module=".".join(filter(None, (place.module, module))), unit=unit)
            self._by_region[f"{place.blocks}.{place.block}.{path}"] = of_unit
            if attribute == "forward":
                self._by_path.setdefault(of_unit.module, of_unit)
            else:
                self.methods.append((owner, attribute, of_unit))


class PlaceStack:
    """Follows a running model: which module's code runs now.

    Attributes:
        num_block_calls: Blocks that have begun since the last `restart`.
        calls_of_blocks: The same by list and position.
        on_change: Called whenever another module's code begins or goes on.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._open: list[Place] = []
        self._calls: dict[int, int] = {}
        self.num_block_calls = 0
        self.calls_of_blocks: Counter[tuple[str, int]] = Counter()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def top(self) -> Place | None:
        """Where the code lies that runs now; None outside of the model."""
        return self._open[-1] if self._open else None

    def restart(self) -> None:
        """A new forward pass begins."""
        self.num_block_calls = 0
        self.calls_of_blocks = Counter()
        self._calls.clear()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Within the context the stack is kept; entered with any policy in force, and left before that is taken off."""
        hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._on_call),
            nn.modules.module.register_module_forward_hook(self._on_return, always_call=True),
        ]
        previous = [
            (owner, attribute, vars(owner).get(attribute)) for owner, attribute, _ in _unique(self._places.methods)
        ]
        for owner, attribute, place in _unique(self._places.methods):
            setattr(owner, attribute, self._entering(getattr(owner, attribute), place))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for owner, attribute, own in previous:
                if own is None:
                    delattr(owner, attribute)
                else:
                    setattr(owner, attribute, own)
            self._open.clear()

    def _on_call(self, module: nn.Module, _args: Any) -> None:
        positions = self._places.block_calls(module)
        if positions:
            # One module at several positions stands at each of them in turn.
            number = self._calls.get(id(module), 0)
            self._calls[id(module)] = number + 1
            self.num_block_calls += 1
            place: Place | None = positions[number % len(positions)]
            assert place is not None
            self.calls_of_blocks[place.blocks or "", place.block or 0] += 1
        else:
            place = self._within(self._places.of_module(module))
        self._push(place)

    def _within(self, place: Place | None) -> Place | None:
        """The place as seen from the code that calls it: what is shared between positions belongs to the open one."""
        top = self.top
        if place is None or top is None or top.blocks is None:
            return top if place is None else place
        unit = place.unit if place.unit is not None and place.blocks == top.blocks else top.unit
        return replace(place, blocks=top.blocks, block=top.block, unit=unit)

    def _on_return(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._pop()

    def _entering(self, original: Callable[..., Any], place: Place) -> Callable[..., Any]:
        @functools.wraps(original)
        def enter(*args: Any, **kwargs: Any) -> Any:
            self._push(self._within(place))
            try:
                return original(*args, **kwargs)
            finally:
                self._pop()

        return enter

    def _push(self, place: Place | None) -> None:
        self._open.append(place if place is not None else Place(""))
        self.on_change()

    def _pop(self) -> None:
        if self._open:
            self._open.pop()
        self.on_change()


def _unique(methods: list[tuple[nn.Module, str, Place]]) -> list[tuple[nn.Module, str, Place]]:
    return list({(id(owner), attribute): (owner, attribute, place) for owner, attribute, place in methods}.values())
