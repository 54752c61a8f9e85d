from __future__ import annotations

import random

import pytest

from runners.measure.allocation_trace import AllocationTrace, Interval
from runners.step_timeline.step_parts import StepParts

INTERVALS = (
    Interval("traced step", 100, 1100),
    Interval("forward", 110, 400),
    Interval("backward", 420, 900),
    Interval("recompute h.1", 500, 600),
    Interval("recompute h.0 to h.1", 700, 750),
    Interval("optimizer", 950, 1090),
)
PARTS = StepParts(INTERVALS[0], AllocationTrace((), INTERVALS))


@pytest.mark.parametrize(
    ("time_ns", "phase"),
    [
        (105, "forward"),
        (399, "forward"),
        (410, "forward"),
        (450, "backward"),
        (550, "recompute"),
        (650, "backward"),
        (720, "recompute"),
        (925, "backward"),
        (1000, "optimizer"),
    ],
)
def test_a_moment_belongs_to_the_innermost_part(time_ns: int, phase: str) -> None:
    assert PARTS.phase_at(time_ns) == phase


def test_spans_are_on_the_step_s_own_clock_and_name_the_region() -> None:
    spans = list(PARTS.spans())
    assert [(span.phase, span.region) for span in spans] == [
        ("forward", None),
        ("backward", None),
        ("recompute", "h.1"),
        ("recompute", "h.0 to h.1"),
        ("optimizer", None),
    ]
    assert (spans[0].start_s, spans[0].end_s) == pytest.approx((10e-9, 300e-9))


def test_the_curve_adds_up_changes_of_both_kinds() -> None:
    curve = PARTS.curve([(200, 50), (300, -20)], [(200, 30)], start_bytes=1000)
    assert curve.times_s == pytest.approx((0.0, 100e-9, 200e-9, 1000e-9))
    assert curve.allocated_bytes == (1000, 1050, 1030, 1030)
    assert curve.kept_bytes == (0, 30, 30, 30)


@pytest.mark.parametrize("num_changes", [10, 3001, 50_000])
def test_a_thinned_curve_keeps_its_maximum_and_its_end(num_changes: int) -> None:
    chance = random.Random(0)
    changes = [(101 + index, chance.randint(-100, 103)) for index in range(num_changes)]
    alive = [0]
    for _, size in changes:
        alive.append(alive[-1] + size)
    parts = StepParts(Interval("traced step", 100, 10**6), AllocationTrace((), INTERVALS))
    curve = parts.curve(changes, [], start_bytes=0)
    assert max(curve.allocated_bytes) == max(alive)
    assert curve.allocated_bytes[-1] == alive[-1]
    assert len(curve.times_s) <= min(num_changes + 2, 3100)
    assert list(curve.times_s) == sorted(curve.times_s)
