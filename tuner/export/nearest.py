"""Measured trials of a study that a stack can say, for a user whose trial it cannot."""

from __future__ import annotations

from tuner.export.base import ExportContext, Exporter
from tuner.export.check import check
from tuner.memory_size import format_bytes
from tuner.results import StudyResults, TrialRecord
from tuner.summary import speed_against

#: A user wants a way out, not a list to search.
_MOST_NAMED = 3


def nearest_trials(
    exporter: Exporter, study: StudyResults, trial: TrialRecord, context: ExportContext
) -> list[tuple[TrialRecord, float | None]]:
    """Feasible trials that the stack says exactly, those of the front first, then the fastest first.

    Each with its speed over that of the given trial; None where one of them has no speed. One for each policy.
    """
    known: dict[str, tuple[TrialRecord, float | None]] = {}
    for other in study.trials:
        if other.feasible and other.number != trial.number and check(exporter, other.to_policy(), context) is None:
            ratio = speed_against(study, other, trial)
            known[other.policy_key] = (other, None if ratio is None else ratio.value)
    return sorted(known.values(), key=lambda found: (not found[0].on_front, -(found[1] or 0.0), found[0].number))


def describe_nearest(
    exporter: Exporter, study: StudyResults, trial: TrialRecord, context: ExportContext
) -> tuple[str, ...]:
    """The nearest ones, a line each; one line that says so where there is none."""
    nearest = nearest_trials(exporter, study, trial, context)
    if not nearest:
        return (
            f"no feasible trial of study {study.study} can be said by {exporter.name}; search with "
            f"placement.target: {exporter.name}",
        )
    return tuple(
        f"--trial {other.number} can be said: {other.policy_summary}, {_speed(speed, trial)}{_peak(other)}"
        for other, speed in nearest[:_MOST_NAMED]
    )


def _speed(speed: float | None, trial: TrialRecord) -> str:
    return "" if speed is None else f"{speed:.2f}x the speed of trial {trial.number}, "


def _peak(trial: TrialRecord) -> str:
    return "peak unknown" if trial.peak_memory_bytes is None else f"peak {format_bytes(trial.peak_memory_bytes)}"
