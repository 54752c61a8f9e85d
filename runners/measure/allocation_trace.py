"""Every allocation of torch's CPU allocator during a step, from the profiler's own records, and what they add up to."""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from runners.measure.phases import Phase

_MARK = "recompute_tuner::"


@dataclass(frozen=True)
class Allocation:
    """One block of memory; times in ns of the profiler's clock, ``freed_ns`` None while it still lives."""

    address: int
    num_bytes: int
    allocated_ns: int
    freed_ns: int | None


@dataclass(frozen=True)
class Interval:
    """A stretch of a step, in ns of the profiler's clock."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class AllocationTrace:
    """Allocations and frees in order, and the marked intervals.

    Attributes:
        changes: (time in ns, bytes gained or given back, address), in order of time.
    """

    changes: tuple[tuple[int, int, int], ...]
    intervals: tuple[Interval, ...]

    def since(self, start_ns: int) -> AllocationTrace:
        """What happened from this time on."""
        return AllocationTrace(
            tuple(change for change in self.changes if change[0] >= start_ns),
            tuple(interval for interval in self.intervals if interval.start_ns >= start_ns),
        )

    def within(self, interval: Interval) -> AllocationTrace:
        """What happened in one of the marked intervals, itself not included."""
        changes = (change for change in self.changes if interval.start_ns <= change[0] <= interval.end_ns)
        return AllocationTrace(tuple(changes), ())

    def peak(self) -> tuple[int, int]:
        """Most bytes gained over the start, and when (ns). (0, start) where memory only falls."""
        total, best, best_ns = 0, 0, self.changes[0][0] if self.changes else 0
        for time_ns, num_bytes, _ in self.changes:
            total += num_bytes
            if total > best:
                best, best_ns = total, time_ns
        return best, best_ns

    def allocations(self) -> Iterator[Allocation]:
        """Each block that was allocated within the trace, with the time it was given back."""
        alive: dict[int, tuple[int, int]] = {}
        for time_ns, num_bytes, address in self.changes:
            if num_bytes >= 0:
                alive[address] = (num_bytes, time_ns)
            elif address in alive:
                size, allocated_ns = alive.pop(address)
                yield Allocation(address, size, allocated_ns, time_ns)
        for address, (size, allocated_ns) in alive.items():
            yield Allocation(address, size, allocated_ns, None)

    def alive_at(self, time_ns: int) -> list[Allocation]:
        """The blocks that were allocated within the trace and in use at that moment."""
        return [
            block
            for block in self.allocations()
            if block.allocated_ns <= time_ns and (block.freed_ns is None or block.freed_ns > time_ns)
        ]

    def lacks_frees(self, live: Container[int]) -> bool:
        """Whether blocks were given back without a record, so that the trace shows more alive than there was.

        The profiler does not see threads of others. Those of gloo hold what a collective works on, and where the
        machine is busy they may be the last to let go of it.

        Args:
            live: Addresses of all blocks that are in use at the end.
        """
        alive: set[int] = set()
        for _, num_bytes, address in self.changes:
            if num_bytes < 0:
                alive.discard(address)
            elif address in alive:
                return True
            else:
                alive.add(address)
        return any(address not in live for address in alive)

    def named(self, name: str) -> list[Interval]:
        return [interval for interval in self.intervals if interval.name == name]


class AllocationRecorder:
    """Records a trace; it is also the watcher that marks the phases in it."""

    def __init__(self) -> None:
        self._profile: Any = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Everything the CPU allocator does within is recorded, kernels' scratch included."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as self._profile:
            yield

    def watching(self, phase: Phase) -> record_function:
        return self.interval(phase.value)

    def interval(self, name: str) -> record_function:
        """Marks a stretch of the recording by name."""
        return record_function(_MARK + name)

    def trace(self) -> AllocationTrace:
        """What was recorded; call it after `recording` has ended."""
        changes: list[tuple[int, int, int]] = []
        intervals: list[Interval] = []
        for event in _flattened(self._profile.profiler.kineto_results.experimental_event_tree()):
            if event.tag == torch._C._profiler._EventType.Allocation:
                fields = event.extra_fields
                if fields.device.type == "cpu":
                    changes.append((event.start_time_ns, fields.alloc_size, fields.ptr))
            elif event.name.startswith(_MARK):
                intervals.append(Interval(event.name.removeprefix(_MARK), event.start_time_ns, event.end_time_ns))
        changes.sort(key=lambda change: change[0])
        intervals.sort(key=lambda interval: interval.start_ns)
        return AllocationTrace(tuple(changes), tuple(intervals))


def _flattened(roots: Iterable[Any]) -> Iterator[Any]:
    waiting = list(roots)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        yield event


def bytes_alive_by_kind(
    trace: AllocationTrace, at_ns: int, gradient_addresses: Iterable[int], gradients_complete_ns: int
) -> dict[str, int]:
    """Splits what the trace allocated and still held at one moment into gradients, activations and temporary bytes.

    A gradient is a block that holds a complete gradient right before the update. An activation was allocated in a
    forward or a rebuild and outlived it: it was kept for backward. The rest is temporary.
    """
    addresses = set(gradient_addresses)
    births = sorted(
        (interval.start_ns, interval.end_ns)
        for phase in (Phase.FORWARD, Phase.RECOMPUTE)
        for interval in trace.named(phase.value)
    )
    starts = [start for start, _ in births]
    alive = {"gradients": 0, "activations": 0, "temporary": 0}
    for block in trace.alive_at(at_ns):
        outlives = block.freed_ns is None or block.freed_ns > gradients_complete_ns
        index = bisect.bisect_right(starts, block.allocated_ns) - 1
        born_ends_ns = births[index][1] if index >= 0 and births[index][1] >= block.allocated_ns else None
        if block.address in addresses and block.allocated_ns < gradients_complete_ns and outlives:
            alive["gradients"] += block.num_bytes
        elif born_ends_ns is not None and (block.freed_ns is None or block.freed_ns > born_ends_ns):
            alive["activations"] += block.num_bytes
        else:
            alive["temporary"] += block.num_bytes
    return alive
