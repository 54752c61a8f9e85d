"""Times whole optimizer steps, and beside them steps of a fixed reference, until the figure is steady."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runners.devices.base import Device
from runners.measure.phases import Phase, PhaseSwitch
from runners.measure.spread import median_standard_error
from runners.trial import MeasurementSpec


@dataclass(frozen=True)
class PhaseTimes:
    """Seconds of one step by part; backward without the rebuilds that run inside it."""

    forward_s: float
    backward_s: float
    recompute_s: float
    optimizer_s: float


@dataclass(frozen=True)
class StepTimes:
    """What a series of steps took.

    Attributes:
        step_times_s: Wall time of each measured step, shape (num_steps,).
        reference_times_s: Reference steps around them, shape (num_steps + 1,); empty without a reference.
        phases: Medians over the measured steps.
    """

    step_times_s: tuple[float, ...]
    reference_times_s: tuple[float, ...]
    phases: PhaseTimes

    def relative_speeds(self) -> list[float]:
        """Speed of each step relative to the mean of the reference steps right before and after it."""
        references = self.reference_times_s
        return [
            (references[index] + references[index + 1]) / 2 / step_time
            for index, step_time in enumerate(self.step_times_s)
            if references
        ]


def measure_step_times(
    run_step: Callable[[], object],
    time_reference: Callable[[], float] | None,
    *,
    phases: PhaseSwitch,
    device: Device,
    measurement: MeasurementSpec,
    give_up: Callable[[], bool] = lambda: False,
) -> StepTimes:
    """Measures from ``min_steps`` to ``max_steps`` steps, until the spread of the median is small enough.

    The spread tested is that of the figure that ranks trials: relative speed where there is a reference, else time.

    Args:
        run_step: One whole optimizer step; warmed up already.
        time_reference: Runs the reference once and gives back the seconds it takes for a whole global batch.
        give_up: Asked after each step from ``min_steps`` on; True ends the series early, for example for want of time.
    """
    clock = PhaseClock(device)
    step_times_s: list[float] = []
    reference_times_s: list[float] = []
    if time_reference is not None:
        reference_times_s.append(time_reference())
    while len(step_times_s) < measurement.max_steps:
        with phases.watched_by(clock):
            step_times_s.append(time_once(run_step, device))
        clock.end_step()
        if time_reference is not None:
            reference_times_s.append(time_reference())
        times = StepTimes(tuple(step_times_s), tuple(reference_times_s), clock.medians())
        if len(step_times_s) >= measurement.min_steps and (_is_steady(times, measurement) or give_up()):
            break
    return times


def _is_steady(times: StepTimes, measurement: MeasurementSpec) -> bool:
    values = times.relative_speeds() or list(times.step_times_s)
    return median_standard_error(values) <= measurement.relative_spread * statistics.median(values)


def time_once(run: Callable[[], object], device: Device) -> float:
    """Seconds that one call takes on the device, from idle to idle."""
    device.synchronize()
    start = device.mark()
    run()
    end = device.mark()
    device.synchronize()
    return device.elapsed_s(start, end)


class PhaseClock:
    """Sums up the phases of each step; recompute is taken out of the backward it runs in."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: list[tuple[Phase, Any, Any]] = []
        self._steps: list[PhaseTimes] = []

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        start = self._device.mark()
        try:
            yield
        finally:
            self._marks.append((phase, start, self._device.mark()))

    def end_step(self) -> None:
        """Closes the sums of one step; the device must be synchronized."""
        total = dict.fromkeys(Phase, 0.0)
        for phase, start, end in self._marks:
            total[phase] += self._device.elapsed_s(start, end)
        self._marks.clear()
        self._steps.append(
            PhaseTimes(
                forward_s=total[Phase.FORWARD],
                backward_s=total[Phase.BACKWARD] - total[Phase.RECOMPUTE],
                recompute_s=total[Phase.RECOMPUTE],
                optimizer_s=total[Phase.OPTIMIZER],
            )
        )

    def medians(self) -> PhaseTimes:
        return PhaseTimes(
            forward_s=statistics.median(step.forward_s for step in self._steps),
            backward_s=statistics.median(step.backward_s for step in self._steps),
            recompute_s=statistics.median(step.recompute_s for step in self._steps),
            optimizer_s=statistics.median(step.optimizer_s for step in self._steps),
        )
