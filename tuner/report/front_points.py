"""The trials of a study as points over peak memory and speed, with what is said of each."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runners.trial import TrialStatus, Verdict
from tuner.hover_text import shortened
from tuner.memory_size import BYTES_PER_UNIT
from tuner.results import LOST_STATUSES, TrialRecord

#: A hover that lists more of them would cover the plot; the table of trials lists all.
_MAX_LISTED = 6
#: Where the front takes up less of the width than this, there is a view of it alone.
_CROWDED_RATIO = 0.35


class FrontKind(str, enum.Enum):
    """What a trial is to the reader; the value is its name in the legend."""

    BEST = "best"
    FRONT = "on the front"
    FEASIBLE = "feasible, not on the front"
    INFEASIBLE = "over the memory cap"
    MISMATCH = "trains another model"
    UNVERIFIED = "not proven"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed or timed out"
    UNFINISHED = "lost or cancelled"


@dataclass(frozen=True)
class FrontPoint:
    """One measured trial: where it is drawn, as what, and what the reader is told of it, line by line.

    Attributes:
        speed_error: Two standard errors of ``speed``; None where they are not known.
        label: Written beside the point; None for most.
    """

    number: int
    peak_memory: float
    speed: float
    kind: FrontKind
    hover: tuple[str, ...]
    speed_error: float | None = None
    label: str | None = None


@dataclass(frozen=True)
class UnmeasuredPoint:
    """Trials without a measurement that share a place in the strip below the plot.

    Attributes:
        predicted_peak: Where it is drawn; None for those of which no peak was predicted.
    """

    kind: FrontKind
    predicted_peak: float | None
    hover: tuple[str, ...]


@dataclass(frozen=True)
class FrontData:
    """Everything the figure shows.

    Attributes:
        points: In order of peak memory, then of speed.
        speed_title: What ``speed`` is: relative to the baseline where all trials were timed beside the same reference,
            since raw throughput moves with the load of the machine; else tokens or samples per second.
        memory_unit: ``GiB``, or ``MiB`` where all is small; unit of every ``peak_memory`` and of the cap.
        memory_cap: The study's cap.
    """

    points: tuple[FrontPoint, ...]
    unmeasured: tuple[UnmeasuredPoint, ...]
    speed_title: str
    memory_unit: str
    memory_cap: float

    def of_kind(self, kind: FrontKind) -> tuple[FrontPoint, ...]:
        return tuple(point for point in self.points if point.kind is kind)

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        """The Pareto front from the smallest peak to the largest, the best trial included."""
        return tuple(point for point in self.points if point.kind in (FrontKind.BEST, FrontKind.FRONT))


@dataclass(frozen=True)
class AxisRanges:
    """A part of the figure: peak memory and speed, each from and to."""

    peak_memory: tuple[float, float]
    speed: tuple[float, float]


def memory_unit(largest_bytes: int) -> tuple[str, int]:
    """The unit in which to draw amounts of up to so many bytes, and its size in bytes."""
    unit = "MiB" if largest_bytes < 2 * BYTES_PER_UNIT["GiB"] else "GiB"
    return unit, BYTES_PER_UNIT[unit]


def front_points(trials: Sequence[TrialRecord], memory_cap_bytes: int) -> FrontData:
    """What to draw for the trials, whose places are the search's own decisions; see `FrontData` for the units."""
    has_tokens = all(trial.tokens_per_second is not None for trial in trials if trial.samples_per_second is not None)
    unit = "tokens/s" if has_tokens else "samples/s"
    baseline_speed = _common_baseline_speed(trials)
    sizes = [trial.peak_memory_bytes for trial in trials if trial.peak_memory_bytes is not None]
    unit_name, num_bytes = memory_unit(max([*sizes, memory_cap_bytes]))
    points = []
    unmeasured = []
    for trial in trials:
        throughput = trial.tokens_per_second if has_tokens else trial.samples_per_second
        if throughput is None or trial.peak_memory_bytes is None:
            unmeasured.append(trial)
            continue
        relative = None if baseline_speed is None else (trial.relative_speed or 0.0) / baseline_speed
        error = None
        if baseline_speed is not None and trial.relative_speed_spread is not None:
            error = 2 * trial.relative_speed_spread / baseline_speed
        peak = trial.peak_memory_bytes / num_bytes
        kind = _kind(trial, memory_cap_bytes)
        speeds = [] if relative is None else [f"{relative:.2f} x the baseline's speed{_plus_minus(error)}"]
        speeds.append(f"{_speed(throughput)} {unit} as measured")
        points.append(
            FrontPoint(
                number=trial.number,
                peak_memory=peak,
                speed=throughput if relative is None else relative,
                kind=kind,
                hover=(trial.policy_summary, *speeds, f"peak {peak:.3g} {unit_name}", *_hover(trial, kind)),
                speed_error=error,
                label="baseline" if trial.is_baseline else None,
            )
        )
    return FrontData(
        points=tuple(sorted(points, key=lambda point: (point.peak_memory, point.speed))),
        unmeasured=tuple(_unmeasured_points(unmeasured, unit_name, num_bytes)),
        speed_title=f"throughput ({unit})" if baseline_speed is None else "speed (baseline = 1)",
        memory_unit=unit_name,
        memory_cap=memory_cap_bytes / num_bytes,
    )


def around_the_cap(data: FrontData) -> AxisRanges | None:
    """The part of the figure that holds the front and the cap; None where the whole figure shows them well."""
    peaks = [point.peak_memory for point in data.points]
    marks = [*(point.peak_memory for point in data.front), data.memory_cap]
    if not data.front or max(marks) - min(marks) > _CROWDED_RATIO * (max(*peaks, *marks) - min(*peaks, *marks)):
        return None
    least, most = _padded(min(marks), max(marks), 0.1)
    speeds = [point.speed for point in data.points if least <= point.peak_memory <= most]
    return AxisRanges((least, most), _padded(min(speeds), max(speeds), 0.15))


def _padded(least: float, most: float, ratio: float) -> tuple[float, float]:
    pad = ratio * (most - least) or 0.05 * most
    return least - pad, most + pad


def _common_baseline_speed(trials: Sequence[TrialRecord]) -> float | None:
    """The baseline's relative speed where every measured trial has one; None where raw throughput must do."""
    measured = [trial for trial in trials if trial.samples_per_second is not None]
    if not all(trial.relative_speed is not None for trial in measured):
        return None
    return next((trial.relative_speed for trial in measured if trial.is_baseline), None)


def _kind(trial: TrialRecord, memory_cap_bytes: int) -> FrontKind:
    if trial.is_best:
        return FrontKind.BEST
    if trial.on_front:
        return FrontKind.FRONT
    if trial.feasible:
        return FrontKind.FEASIBLE
    if trial.verification is not None and trial.verification.verdict is Verdict.MISMATCH:
        return FrontKind.MISMATCH
    assert trial.peak_memory_bytes is not None
    if trial.peak_memory_bytes > memory_cap_bytes:
        return FrontKind.INFEASIBLE
    return FrontKind.UNVERIFIED


def _kind_without_measurement(trial: TrialRecord) -> FrontKind:
    if trial.status is TrialStatus.OUT_OF_MEMORY:
        return FrontKind.OUT_OF_MEMORY
    return FrontKind.UNFINISHED if trial.status in LOST_STATUSES else FrontKind.FAILED


def _reason(trial: TrialRecord) -> str | None:
    return trial.reason or trial.infeasible_reason


def _hover(trial: TrialRecord, kind: FrontKind) -> Iterable[str]:
    yield f"micro-batch {trial.micro_batch_size} x {trial.gradient_accumulation_steps} accumulation steps"
    yield f"verdict {'none' if trial.verification is None else trial.verification.verdict.value}"
    yield f"trial {trial.number}: {kind.value}"
    reason = _reason(trial)
    if reason:
        yield reason


def _unmeasured_points(trials: Sequence[TrialRecord], unit: str, num_bytes: int) -> Iterable[UnmeasuredPoint]:
    unknown: dict[FrontKind, list[TrialRecord]] = {}
    for trial in trials:
        kind = _kind_without_measurement(trial)
        if trial.predicted_peak_memory_bytes is None:
            unknown.setdefault(kind, []).append(trial)
            continue
        peak = trial.predicted_peak_memory_bytes / num_bytes
        lines = (trial.policy_summary, f"predicted peak {peak:.3g} {unit}", f"trial {trial.number}: {kind.value}")
        yield UnmeasuredPoint(kind, peak, (*lines, *filter(None, [_reason(trial)])))
    for kind, members in unknown.items():
        title = f"{len(members)} trial{'' if len(members) == 1 else 's'}: {kind.value}, peak not known"
        listed = [
            f"trial {trial.number}, {shortened(trial.policy_summary)}"
            + (f": {shortened(reason, 90)}" if (reason := _reason(trial)) else "")
            for trial in members[:_MAX_LISTED]
        ]
        more = [f"and {len(members) - _MAX_LISTED} more"] if len(members) > _MAX_LISTED else []
        yield UnmeasuredPoint(kind, None, (title, *listed, *more))


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f" +-{error / 2:.2f}"


def _speed(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
