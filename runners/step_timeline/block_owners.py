"""Which block, and which unit of it, a module call belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from runners.inspection.block_lists import container_at
from runners.inspection.call_trace import Target
from runners.inspection.unit_path import resolve_unit
from search_spaces.model_shape import ModelShape
from search_spaces.policy import NONE, SEGMENT, RecomputePolicy, Region
from search_spaces.unit_span import is_spans, parse_spans


@dataclass(frozen=True)
class Owner:
    """A block of a list, or a unit of it.

    Attributes:
        block: Path of the block; None outside of all blocks.
        position: In its list.
        unit: None for the rest of the block.
        list_index: Of its list among the model's.
    """

    block: str | None = None
    position: int = 0
    unit: str | None = None
    list_index: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Sorts blocks as the model runs them."""
        return self.list_index, self.position


class BlockOwners:
    """Tells blocks and units apart by the names of module calls.

    Args:
        model: Has the lists of blocks that the shape names.
        policies: Their units are told apart, too.
    """

    def __init__(self, model: nn.Module, shape: ModelShape, policies: Sequence[RecomputePolicy]) -> None:
        self._blocks: dict[str, Owner] = {}
        self._units: dict[str, Owner] = {}
        self._targets: dict[str, Target] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for index, blocks in enumerate(shape.block_lists):
            units = dict(blocks.units)
            for placement in (placement for policy in policies for placement in policy.placement):
                if placement.blocks == blocks.path:
                    units |= placement.unit_paths
            self._add(model, blocks.path, index, units)

    def unit_targets(self) -> dict[str, Target]:
        """Name -> call of the units that are methods rather than modules."""
        return dict(self._targets)

    def owner_of(self, calls: Sequence[str]) -> Owner:
        """Whose calls these are, the outermost first."""
        found = Owner()
        for name in calls:
            for prefix in _prefixes(name):
                if found.block is None:
                    found = self._blocks.get(prefix, found)
                if found.unit is None:
                    found = self._units.get(prefix, found)
        return found

    def region_heads(self, policy: RecomputePolicy) -> set[str]:
        """Names of the calls that begin a recompute region of the policy."""
        heads: set[str] = set()
        for placement in policy.placement:
            names, paths = self._names[placement.blocks], placement.unit_paths
            for region in placement.regions:
                heads.update(_heads(region, names, paths))
        return heads

    def _add(self, model: nn.Module, blocks: str, index: int, units: Mapping[str, str]) -> None:
        container = container_at(model.get_submodule(blocks), blocks)
        self._names[blocks] = container.names
        for position, (name, block) in enumerate(zip(container.names, container.blocks, strict=True)):
            self._blocks[name] = Owner(name, position, list_index=index)
            for unit, path in units.items():
                if is_spans(path):
                    continue  # Its parts lie in other units.
                self._units[f"{name}.{path}"] = Owner(name, position, unit, index)
                if path.endswith("()"):
                    self._targets[f"{name}.{path}"] = resolve_unit(block, path)


def _prefixes(name: str) -> Iterator[str]:
    """``h``, ``h.0``, ``h.0.attn`` of ``h.0.attn``."""
    end = name.find(".")
    while end != -1:
        yield name[:end]
        end = name.find(".", end + 1)
    yield name


def _heads(region: Region, names: Sequence[str], unit_paths: Mapping[str, str]) -> Iterator[str]:
    if region.action == SEGMENT:
        yield from (names[first] for first, _ in region.segments())
        return
    for name in names[region.first : region.last + 1]:
        units = region.unit_names()
        for unit in units:
            yield from _unit_heads(name, unit_paths[unit])
        if not units and region.action != NONE:
            yield name


def _unit_heads(block: str, path: str) -> Iterator[str]:
    if not is_spans(path):
        yield f"{block}.{path}"
        return
    for span in parse_spans(path):
        yield f"{block}.{span.head}" if span.head else block
