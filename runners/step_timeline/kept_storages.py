"""Saves and uses of a step put together with the allocations that they are about."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from runners.measure.allocation_trace import Allocation
from runners.step_timeline.save_log import Save, SaveLog, Use
from runners.step_timeline.saved_tensors import KeptView
from runners.step_timeline.step_recording import Place, Point, StepRecording

#: What stands for an operator where a recompute region keeps what it was called with.
REGION_INPUT = "region input"


@dataclass
class KeptBy:
    """One time that a storage was kept; times in ns of the profiler's clock.

    Attributes:
        node: The node of the autograd graph that used it.
        used_ns: None until it is used.
    """

    save: Save
    view: KeptView
    place: Place
    saved_ns: int
    node: str | None = None
    used_ns: int | None = None


@dataclass
class KeptStorage:
    """A storage that was kept at least once.

    Attributes:
        allocation: None for a storage that was there before the step.
    """

    address: int
    num_bytes: int
    allocation: Allocation | None
    kept_by: list[KeptBy] = field(default_factory=list)

    @property
    def is_on_host(self) -> bool:
        return any(kept.save.is_on_host for kept in self.kept_by)

    @property
    def last_use_ns(self) -> int | None:
        return max((kept.used_ns for kept in self.kept_by if kept.used_ns is not None), default=None)


class AllocationIndex:
    """Finds what was alive at an address at some time: addresses are used again and again."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._at: dict[int, list[Allocation]] = defaultdict(list)
        for allocation in sorted(allocations, key=lambda each: each.allocated_ns):
            self._at[allocation.address].append(allocation)

    def find(self, address: int, time_ns: int) -> Allocation | None:
        """The allocation there; None where the step had made none."""
        candidates = self._at.get(address, [])
        index = bisect.bisect_right(candidates, time_ns, key=lambda each: each.allocated_ns) - 1
        if index < 0:
            return None
        found = candidates[index]
        return found if found.freed_ns is None or found.freed_ns > time_ns else None


def kept_storages(recording: StepRecording, log: SaveLog) -> list[KeptStorage]:
    """Every storage that was kept, in the order in which they were kept first."""
    return _Matcher(recording, log.saves).match(log.uses)


class _Matcher:
    def __init__(self, recording: StepRecording, saves: Sequence[Save]) -> None:
        self._points = {point.number: point for point in recording.points}
        self._allocations = AllocationIndex(recording.trace.allocations())
        self._storages: dict[tuple[int, int | None], KeptStorage] = {}
        self._by_save: list[list[tuple[KeptStorage, KeptBy]]] = [self._add(save) for save in saves]

    def match(self, uses: Sequence[Use]) -> list[KeptStorage]:
        for use in uses:
            point = self._points[use.point]
            for view in use.views:
                kept = self._saved_as(use, view, point)
                if kept is not None:
                    kept.used_ns = point.time_ns
                    # A region's inputs are taken for its rebuild, not for the node that happened to need it first.
                    kept.node = None if use.save is None else point.place.node
        return list(self._storages.values())

    def _add(self, save: Save) -> list[tuple[KeptStorage, KeptBy]]:
        point = self._points[save.point]
        place = point.place if save.region is None else Place((*point.place.calls, save.region), REGION_INPUT)
        added = []
        for view in save.views:
            storage = self._storage_of(view, point.time_ns)
            kept = KeptBy(save, view, place, point.time_ns)
            storage.kept_by.append(kept)
            added.append((storage, kept))
        return added

    def _storage_of(self, view: KeptView, time_ns: int) -> KeptStorage:
        allocation = self._allocations.find(view.address, time_ns)
        key = (view.address, None if allocation is None else allocation.allocated_ns)
        if key not in self._storages:
            num_bytes = view.storage_bytes if allocation is None else allocation.num_bytes
            self._storages[key] = KeptStorage(view.address, num_bytes, allocation)
        return self._storages[key]

    def _saved_as(self, use: Use, view: KeptView, point: Point) -> KeptBy | None:
        """Which save a use takes back: its own, or the rebuild's in its place; None where there is no such save."""
        if use.save is not None:
            for storage, kept in self._by_save[use.save]:
                # What waited on the host comes back in other memory.
                if storage.address == view.address or kept.save.is_on_host:
                    return kept
        allocation = self._allocations.find(view.address, point.time_ns)
        storage_there = self._storages.get((view.address, None if allocation is None else allocation.allocated_ns))
        if storage_there is None:
            return None
        return next(_candidates(storage_there, use, view, point), None)


def _candidates(storage: KeptStorage, use: Use, view: KeptView, point: Point) -> Iterator[KeptBy]:
    """Saves of an equal view, the latest first, since backward goes back the way that forward came."""
    for kept in reversed(storage.kept_by):
        is_alike = kept.view.shape == view.shape and (kept.save.region is not None) == (use.save is None)
        if is_alike and kept.used_ns is None and kept.saved_ns <= point.time_ns:
            yield kept
