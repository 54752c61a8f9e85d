"""One list of blocks while its model is traced: collects what the passes show and turns it into a BlockList."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runners.inspection.block_lists import Container, ListUse
from runners.inspection.call_trace import CallTrace, Target
from runners.inspection.chain import alias_groups, segment_refusal
from runners.inspection.inner_units import InnerUnits
from runners.inspection.unit_use import UnitUse
from runners.regions.held_statistics import keeps_statistics
from search_spaces.model_shape import BlockList
from search_spaces.unit_span import is_spans


class WatchedList:
    """A container and the units its blocks may have.

    Args:
        unit_paths: Unit name -> paths below the block, the best one first; every block has each of them.
        inner_units: Names of the units to be found that begin or end inside a module.
    """

    def __init__(
        self, container: Container, unit_paths: Mapping[str, Sequence[str]], inner_units: Sequence[str]
    ) -> None:
        self.container = container
        spans = {unit: paths[0] for unit, paths in unit_paths.items() if is_spans(paths[0])}
        self._inner = InnerUnits(container.blocks, spans, inner_units)
        self._units = {
            unit: [UnitUse(path, container.blocks) for path in paths]
            for unit, paths in unit_paths.items()
            if unit not in spans
        }
        self._uses: list[ListUse] = []
        self._refusals: list[str] = []

    @property
    def targets(self) -> list[Target]:
        units = [target for paths in self._units.values() for use in paths for target in use.targets]
        return [*self.container.targets, *units, *self._inner.targets]

    @property
    def watched_units(self) -> tuple[str, ...]:
        """Names of the units that are offered or left out for a reason."""
        return (*self._units, *self._inner.names)

    @property
    def use(self) -> ListUse:
        """The first pass that called any block, or else the first pass."""
        return next((use for use in self._uses if use.num_calls), self._uses[0])

    def observe(self, trace: CallTrace) -> None:
        """Adds one forward pass."""
        self._uses.append(ListUse(self.container, trace))
        calls = trace.calls_of(self.container.targets)
        refusal = segment_refusal(self.container.names, self.container.blocks, calls)
        if refusal is not None:
            self._refusals.append(refusal)
        for paths in self._units.values():
            for unit in paths:
                unit.observe(trace)
        self._inner.observe(trace)

    def block_list(self) -> BlockList:
        kinds = dict.fromkeys(type(block).__name__ for block in self.container.blocks)
        return BlockList(
            path=self.container.path,
            kind="|".join(kinds),
            num_blocks=len(self.container.blocks),
            units=(*((name, unit.path) for name, unit in self._usable_units().items()), *self._inner.paths().items()),
            aliases=alias_groups(self.container.blocks),
            segment_refusal=next(iter(self._refusals), None),
            overlaps=tuple(self._overlaps()),
            keeps_statistics=any(map(keeps_statistics, self.container.blocks)),
        )

    def left_out_units(self) -> Iterator[tuple[str, str]]:
        """Unit name and why it is not offered, for each unit that was watched and is not in `block_list`."""
        usable = self._usable_units()
        for name, paths in self._units.items():
            if name not in usable:
                reasons = [f"{unit.path} {unit.problem() or 'is part of another unit'}" for unit in paths]
                yield name, "; ".join(reasons)
        for name in self._inner.names:
            problem = self._inner.problem(name)
            if problem is not None:
                yield name, problem

    def gaps(self) -> Iterator[tuple[str, str]]:
        """Unit name and what it does not reach, for units in `block_list`."""
        for name in self._inner.paths():
            gap = self._inner.gap(name)
            if gap is not None:
                yield name, gap

    def _overlaps(self) -> Iterator[tuple[str, str]]:
        inner = self._inner.paths()
        for name in inner:
            for other, unit in self._usable_units().items():
                if self._inner.shares_with(name, unit.keys):
                    yield name, other

    def _usable_units(self) -> dict[str, UnitUse]:
        fitting = {
            name: unit
            for name, paths in self._units.items()
            if (unit := next((each for each in paths if each.problem() is None), None)) is not None
        }
        return {
            name: unit for name, unit in fitting.items() if not any(unit.is_inside(other) for other in fitting.values())
        }
