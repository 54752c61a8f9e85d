"""Policies that both studies have measured: the same work, so their ratio is what else differs."""

from __future__ import annotations

from typing import Literal

from tuner.comparison.placements import likeness
from tuner.comparison.records import SharedPolicy
from tuner.comparison.speed_between import SpeedBetween
from tuner.results import StudyResults, TrialRecord


def shared_policies(a: StudyResults, b: StudyResults, speeds: SpeedBetween) -> tuple[SharedPolicy, ...]:
    """One entry per policy that was timed in both, the fastest in A first."""
    measured_a, measured_b = _measured(a), _measured(b)
    shared = [
        entry
        for key, trial in measured_a.items()
        if key in measured_b and (entry := _shared(trial, measured_b[key], speeds)) is not None
    ]
    return tuple(sorted(shared, key=lambda entry: entry.step_time_a_s))


def _measured(results: StudyResults) -> dict[object, TrialRecord]:
    """Timed trials by what they do; of several that do the same the best one, or else the first."""
    found: dict[object, TrialRecord] = {}
    for trial in results.trials:
        if trial.step_time_s is not None:
            key = likeness(trial.to_policy())
            if key not in found or trial.is_best:
                found[key] = trial
    return found


def _shared(a: TrialRecord, b: TrialRecord, speeds: SpeedBetween) -> SharedPolicy | None:
    ratio = speeds.ratio(a, b)
    if ratio is None or a.step_time_s is None or b.step_time_s is None:
        return None
    sides: tuple[tuple[Literal["a", "b"], TrialRecord], ...] = (("a", a), ("b", b))
    has_peaks = a.peak_memory_bytes and b.peak_memory_bytes
    return SharedPolicy(
        policy=a.policy_summary,
        trial_a=a.number,
        trial_b=b.number,
        best_in=tuple(side for side, trial in sides if trial.is_best),
        feasible_a=a.feasible,
        feasible_b=b.feasible,
        step_time_a_s=a.step_time_s,
        step_time_b_s=b.step_time_s,
        speed_ratio=ratio,
        peak_a_bytes=a.peak_memory_bytes,
        peak_b_bytes=b.peak_memory_bytes,
        peak_ratio=(b.peak_memory_bytes or 0) / (a.peak_memory_bytes or 1) if has_peaks else None,
    )
