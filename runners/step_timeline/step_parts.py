"""The parts of a recorded step on its own clock: seconds since it began."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from runners.measure.allocation_trace import AllocationTrace, Interval
from runners.measure.phases import Phase
from runners.step_timeline.records import MemoryCurve, PhaseName, PhaseSpan

_NAMES: dict[str, PhaseName] = {
    Phase.FORWARD.value: "forward",
    Phase.BACKWARD.value: "backward",
    Phase.RECOMPUTE.value: "recompute",
    Phase.OPTIMIZER.value: "optimizer",
}
#: More points than this are not told apart on any screen.
_MAX_POINTS = 3000


class StepParts:
    """Where in the step a moment lies.

    Args:
        step: The interval of the whole step.
        trace: What happened within it.
    """

    def __init__(self, step: Interval, trace: AllocationTrace) -> None:
        self.start_ns = step.start_ns
        self.end_ns = step.end_ns
        self._intervals = [
            (interval, _NAMES[interval.name.split(" ")[0]])
            for interval in trace.intervals
            if interval.name.split(" ")[0] in _NAMES and interval.end_ns <= step.end_ns
        ]
        self._rebuilds = [interval for interval, phase in self._intervals if phase == "recompute"]
        self._rebuild_starts = [interval.start_ns for interval in self._rebuilds]
        self.backward_start_ns = next(each.start_ns for each, phase in self._intervals if phase == "backward")

    def seconds(self, time_ns: int) -> float:
        """Seconds since the step began."""
        return (time_ns - self.start_ns) / 1e9

    def seconds_or_none(self, time_ns: int | None) -> float | None:
        return None if time_ns is None else self.seconds(time_ns)

    def phase_at(self, time_ns: int) -> PhaseName:
        """The part that ran, the innermost of them; what lies between two parts belongs to the one before."""
        if self.rebuild_around(time_ns) is not None:
            return "recompute"
        started = [phase for each, phase in self._intervals if phase != "recompute" and each.start_ns <= time_ns]
        return started[-1] if started else "forward"

    def rebuild_around(self, time_ns: int) -> Interval | None:
        """The rebuild that ran at that moment."""
        index = bisect.bisect_right(self._rebuild_starts, time_ns) - 1
        return self._rebuilds[index] if index >= 0 and self._rebuilds[index].end_ns >= time_ns else None

    def spans(self) -> Iterator[PhaseSpan]:
        for interval, phase in self._intervals:
            region = interval.name.partition(" ")[2] or None
            yield PhaseSpan(
                phase=phase,
                start_s=self.seconds(interval.start_ns),
                end_s=self.seconds(interval.end_ns),
                region=region,
            )

    def curve(
        self, changes: Iterable[tuple[int, int]], kept_changes: Iterable[tuple[int, int]], start_bytes: int
    ) -> MemoryCurve:
        """The two curves, thinned out; changes are (time in ns, bytes gained or given back)."""
        merged = sorted([(time_ns, size, 0) for time_ns, size in changes] + [(t, 0, size) for t, size in kept_changes])
        allocated, kept = start_bytes, 0
        points = [(self.start_ns, allocated, kept)]
        for time_ns, size, kept_size in merged:
            allocated += size
            kept += kept_size
            if points[-1][0] == time_ns:
                points.pop()
            points.append((time_ns, allocated, kept))
        points.append((self.end_ns, allocated, kept))
        points = _thinned(points)
        return MemoryCurve(
            times_s=tuple(self.seconds(time_ns) for time_ns, _, _ in points),
            allocated_bytes=tuple(size for _, size, _ in points),
            kept_bytes=tuple(size for _, _, size in points),
        )


def _thinned(points: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Few enough points: of each stretch the one with most memory, and its last one."""
    stride = -(-2 * len(points) // _MAX_POINTS)
    if stride <= 2:
        return points
    thin: list[tuple[int, int, int]] = [points[0]]
    for first in range(1, len(points), stride):
        stretch = points[first : first + stride]
        highest = max(stretch, key=lambda point: point[1])
        thin += [highest] if highest is stretch[-1] else [highest, stretch[-1]]
    return thin
