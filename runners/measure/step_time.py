"""Times whole optimizer steps, and beside them steps of a fixed reference, until the figure is steady."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runners.devices.base import Device
from runners.measure.phases import Phase, PhaseSwitch
from runners.measure.speed_comparison import compare_speeds
from runners.measure.spread import Center, median_standard_error
from runners.parallel.ranks import ALONE, Ranks
from runners.trial import MeasurementSpec

#: A long series is looked at after each twentieth part of it: every look goes through all of its pairs.
_STEPS_PER_LOOK = 20


@dataclass(frozen=True)
class PhaseTimes:
    """Seconds of one step by part; backward without the rebuilds that run inside it.

    They add up to the step but for what lies between the parts: averaging the losses, and Python's own steps.
    """

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
        phases: A step of the median time, divided as the steps were.
        processor_shares: Processor seconds over wall seconds of each measured step, as `step_times_s`.
    """

    step_times_s: tuple[float, ...]
    reference_times_s: tuple[float, ...]
    phases: PhaseTimes
    processor_shares: tuple[float, ...] = ()

    def relative_speed(self) -> Center | None:
        """Speed of the steps relative to the mean of the reference steps right before and after each.

        None without a reference.
        """
        beside_s = [(before + after) / 2 for before, after in itertools.pairwise(self.reference_times_s)]
        shares = [self.processor_shares] if self.processor_shares else []
        return compare_speeds(self.step_times_s, beside_s, shares) if beside_s else None

    def reference_drift(self) -> float | None:
        """Median time of the later half of the reference steps over that of the earlier half; None below two."""
        references, half = self.reference_times_s, len(self.reference_times_s) // 2
        return statistics.median(references[-half:]) / statistics.median(references[:half]) if half else None


def measure_step_times(
    run_step: Callable[[], object],
    time_reference: Callable[[], float] | None,
    *,
    phases: PhaseSwitch,
    device: Device,
    measurement: MeasurementSpec,
    give_up: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
) -> StepTimes:
    """Measures from ``min_steps`` to ``max_steps`` steps, until the spread of the median is small enough.

    The spread tested is that of the figure that ranks trials: relative speed where there is a reference, else time.

    Args:
        run_step: One whole optimizer step; warmed up already.
        time_reference: Runs the reference once and gives back the seconds it takes for a whole global batch.
        give_up: Asked after each step from ``min_steps`` on; True ends the series early, for example for want of time.
            Of several ranks each must be given the same answer.
        ranks: Those that run the steps; a step takes as long as the slowest of them.
    """
    clock = PhaseClock(device)
    step_times_s: list[float] = []
    shares: list[float] = []
    reference_times_s: list[float] = []
    if time_reference is not None:
        reference_times_s.append(time_reference())
    while len(step_times_s) < measurement.max_steps:
        with phases.watched_by(clock):
            timed = time_once(run_step, device, ranks)
        step_times_s.append(timed.time_s)
        shares.append(timed.processor_share)
        clock.end_step(step_times_s[-1])
        if time_reference is not None:
            reference_times_s.append(time_reference())
        phases_of_median = clock.split(statistics.median(step_times_s))
        times = StepTimes(tuple(step_times_s), tuple(reference_times_s), phases_of_median, tuple(shares))
        if len(step_times_s) >= measurement.min_steps and (give_up() or _is_steady(times, measurement)):
            break
    return times


def _is_steady(times: StepTimes, measurement: MeasurementSpec) -> bool:
    count = len(times.step_times_s)
    if count % max(1, count // _STEPS_PER_LOOK):
        return False
    speed = times.relative_speed()
    if speed is not None:
        return speed.standard_error <= measurement.relative_spread * speed.value
    step_times_s = times.step_times_s
    return median_standard_error(step_times_s) <= measurement.relative_spread * statistics.median(step_times_s)


@dataclass(frozen=True)
class TimedRun:
    """What one call took.

    Attributes:
        time_s: Wall time on the device, from idle to idle.
        processor_share: Processor seconds of this process, all threads together, over wall seconds of the host: low
            where others took the processor. Of several ranks the mean of theirs.
    """

    time_s: float
    processor_share: float


def time_once(run: Callable[[], object], device: Device, ranks: Ranks = ALONE) -> TimedRun:
    """Times one call; one that several ranks make together takes as long as it takes the slowest of them."""
    device.synchronize()
    processor_start_s, host_start_s = time.process_time(), time.perf_counter()
    start = device.mark()
    run()
    end = device.mark()
    device.synchronize()
    host_s = time.perf_counter() - host_start_s
    own = TimedRun(device.elapsed_s(start, end), (time.process_time() - processor_start_s) / host_s)
    # This also brings the ranks to one point in time before the next call.
    of_ranks = ranks.gather(own)
    return TimedRun(
        max(timed.time_s for timed in of_ranks), statistics.fmean(timed.processor_share for timed in of_ranks)
    )


class PhaseClock:
    """Divides each step into its phases; recompute is taken out of the backward it runs in."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: list[tuple[Phase, Any, Any]] = []
        self._shares: list[dict[Phase, float]] = []

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        start = self._device.mark()
        try:
            yield
        finally:
            self._marks.append((phase, start, self._device.mark()))

    def end_step(self, step_time_s: float) -> None:
        """Closes the sums of one step; the device must be synchronized."""
        total = dict.fromkeys(Phase, 0.0)
        for phase, start, end in self._marks:
            total[phase] += self._device.elapsed_s(start, end)
        self._marks.clear()
        total[Phase.BACKWARD] -= total[Phase.RECOMPUTE]
        self._shares.append({phase: seconds / step_time_s for phase, seconds in total.items()})

    def split(self, step_time_s: float) -> PhaseTimes:
        """A step of this length by the shares of the steps so far; at least one.

        Seconds of parts, each taken from the step in which it was the middle one, do not add up to any step: on a
        machine that slows down now and then, another part of each step is slowed. Shares of whole steps do, once the
        medians are scaled so that they make one step, with what lies between the parts.
        """
        shares = {phase: statistics.median(step[phase] for step in self._shares) for phase in Phase}
        between = statistics.median(1 - sum(step.values()) for step in self._shares)
        scale = step_time_s / (sum(shares.values()) + between)
        return PhaseTimes(
            forward_s=scale * shares[Phase.FORWARD],
            backward_s=scale * shares[Phase.BACKWARD],
            recompute_s=scale * shares[Phase.RECOMPUTE],
            optimizer_s=scale * shares[Phase.OPTIMIZER],
        )
