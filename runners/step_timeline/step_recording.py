"""One recorded step as the profiler saw it: allocations, marks, and for each of them which modules and operator ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from runners.measure.allocation_trace import AllocationRecorder, AllocationTrace, Interval
from runners.measure.phases import Phase, PhaseSwitch

_PREFIX = "recompute_tuner::"
_CALL, _POINT = "call ", "point "
_CALL_MARK = f"{_PREFIX}{_CALL}"
_NODE = "autograd::engine::evaluate_function: "
#: Operators that only ask for memory: which one did says nothing of what it is for.
_ALLOCATING = re.compile(r"aten::(new_)?empty|aten::resize_|detach$")

_ALLOCATION, _OPERATOR = torch._C._profiler._EventType.Allocation, torch._C._profiler._EventType.TorchOp


@dataclass(frozen=True)
class Place:
    """What ran around an event.

    Attributes:
        calls: Names of the module calls, the outermost first.
        operator: The innermost operator inside the innermost of them; None where none ran.
        node: The node of the autograd graph that ran; None in forward and inside a rebuild's calls.
    """

    calls: tuple[str, ...] = ()
    operator: str | None = None
    node: str | None = None

    @property
    def module(self) -> str:
        """Path of the innermost module; empty for the model itself, and where no module ran."""
        return self.calls[-1] if self.calls else ""


@dataclass(frozen=True)
class Point:
    """A marked moment.

    Attributes:
        number: Moments are numbered in the order in which they were marked.
    """

    number: int
    time_ns: int
    place: Place


@dataclass(frozen=True)
class StepRecording:
    """What was recorded.

    Attributes:
        trace: Allocations of the device, and the marked intervals: phases by their name, a recompute with its region's
            name after a space.
        births: Address and time (ns) of each allocation -> what ran.
    """

    trace: AllocationTrace
    points: tuple[Point, ...]
    births: dict[tuple[int, int], Place]


class StepRecorder(AllocationRecorder):
    """Records steps with marks in them.

    Args:
        device_type: Whose allocations count, for example ``cpu``.
        phases: Asked for the region that is being rebuilt.

    Attributes:
        phase: The one that began last; the end of a rebuild does not show.
    """

    def __init__(self, device_type: str, phases: PhaseSwitch) -> None:
        super().__init__()
        self._device_type = device_type
        self._phases = phases
        self._num_points = 0
        self.phase = Phase.FORWARD

    def interval(self, name: str) -> Any:
        # A public `record_function` costs 50 times as much, and a step is marked hundreds of times (torch 2.8 to 2.13).
        return torch._C._profiler._RecordFunctionFast(f"{_PREFIX}{name}")

    def watching(self, phase: Phase) -> Any:
        self.phase = phase
        region = self._phases.last_recomputed_region
        return self.interval(f"{phase.value} {region}" if phase is Phase.RECOMPUTE else phase.value)

    def call(self, name: str) -> Any:
        """Marks the length of a module's call."""
        return self.interval(f"{_CALL}{name}")

    def mark_point(self) -> int:
        """Marks this moment and gives back its number."""
        number = self._num_points
        self._num_points += 1
        with self.interval(f"{_POINT}{number}"):
            return number

    def step_recording(self, step: str) -> StepRecording:
        """All that was recorded; call it after `recording` has ended.

        Args:
            step: Name of the interval that is of interest: what lies before it has no places.
        """
        changes: list[tuple[int, int, int]] = []
        intervals: list[Interval] = []
        points: list[Point] = []
        births: dict[tuple[int, int], Place] = {}
        for event, place in _placed(self._profile.profiler.kineto_results.experimental_event_tree(), step):
            if event.tag == _ALLOCATION:
                fields = event.extra_fields
                if fields.device.type == self._device_type:
                    changes.append((event.start_time_ns, fields.alloc_size, fields.ptr))
                    if fields.alloc_size > 0:
                        births[fields.ptr, event.start_time_ns] = place
                continue
            name = event.name
            if not name.startswith(_PREFIX):
                continue
            name = name.removeprefix(_PREFIX)
            if name.startswith(_POINT):
                points.append(Point(int(name.removeprefix(_POINT)), event.start_time_ns, place))
            elif not name.startswith(_CALL):
                intervals.append(Interval(name, event.start_time_ns, event.end_time_ns))
        changes.sort(key=lambda change: change[0])
        intervals.sort(key=lambda interval: interval.start_ns)
        points.sort(key=lambda point: point.number)
        return StepRecording(AllocationTrace(tuple(changes), tuple(intervals)), tuple(points), births)


def _placed(roots: list[Any], step: str) -> Iterator[tuple[Any, Place]]:
    """Every event of the forest with the place around it, as far as it began with the step or later."""
    start_ns = next(root.start_time_ns for root in roots if root.name == f"{_PREFIX}{step}")
    nowhere = Place()
    waiting = [(root, nowhere, root.start_time_ns >= start_ns) for root in roots]
    while waiting:
        event, place, is_placed = waiting.pop()
        yield event, place
        children = event.children
        if children:
            inner = _inside(event, place) if is_placed else nowhere
            waiting.extend((child, inner, is_placed) for child in children)


def _inside(event: Any, place: Place) -> Place:
    """The place of what an event holds."""
    name: str = event.name
    if name.startswith(_CALL_MARK):
        return Place((*place.calls, name.removeprefix(_CALL_MARK)))
    if name.startswith(_PREFIX):
        return place
    if name.startswith(_NODE):
        return Place(place.calls, None, name.removeprefix(_NODE))
    if event.tag == _OPERATOR and not _ALLOCATING.match(name):
        return Place(place.calls, name, place.node)
    return place
