"""Measured trials of a study that a stack can say, for a user whose trial it cannot."""

from __future__ import annotations

from tuner.export.base import ExportContext, Exporter
from tuner.export.check import check
from tuner.memory_size import describe_bytes, format_bytes
from tuner.results import StudyResults, TrialRecord
from tuner.summary import speed_against

#: A user wants a way out, not a list to search.
_MOST_NAMED = 3


def nearest_trials(
    exporter: Exporter,
    study: StudyResults,
    trial: TrialRecord,
    context: ExportContext,
    *,
    memory_cap_bytes: int | None,
) -> list[tuple[TrialRecord, float | None]]:
    """Feasible trials that the stack says exactly, those of the front first, then the fastest first.

    Each with its speed over that of the given trial; None where one of them has no speed. One for each policy.

    Args:
        memory_cap_bytes: Trials above it, or of unknown peak, are left out; None leaves out none.
    """
    known: dict[str, tuple[TrialRecord, float | None]] = {}
    for other in study.trials:
        if not other.feasible or other.number == trial.number or not _is_within(other, memory_cap_bytes):
            continue
        if check(exporter, other.to_policy(), context) is None:
            ratio = speed_against(study, other, trial)
            known[other.policy_key] = (other, None if ratio is None else ratio.value)
    return sorted(known.values(), key=lambda found: (not found[0].on_front, -(found[1] or 0.0), found[0].number))


def describe_nearest(
    exporter: Exporter,
    study: StudyResults,
    trial: TrialRecord,
    context: ExportContext,
    *,
    memory_cap_bytes: int | None,
) -> tuple[str, ...]:
    """The nearest ones, a line each; one line that says so where there is none."""
    nearest = nearest_trials(exporter, study, trial, context, memory_cap_bytes=memory_cap_bytes)
    if not nearest:
        within = "" if memory_cap_bytes is None else f" within --memory-cap {describe_bytes(memory_cap_bytes)}"
        return (
            f"no feasible trial of study {study.study}{within} can be said by {exporter.name}; search with "
            f"placement.target: {exporter.name}",
        )
    return tuple(
        f"--trial {other.number} can be said: {other.policy_summary}, {_speed(speed, trial)}{_peak(other)}"
        for other, speed in nearest[:_MOST_NAMED]
    )


def _is_within(trial: TrialRecord, memory_cap_bytes: int | None) -> bool:
    if memory_cap_bytes is None:
        return True
    return trial.peak_memory_bytes is not None and trial.peak_memory_bytes <= memory_cap_bytes


def _speed(speed: float | None, trial: TrialRecord) -> str:
    return "" if speed is None else f"{speed:.2f}x the speed of trial {trial.number}, "


def _peak(trial: TrialRecord) -> str:
    return "peak unknown" if trial.peak_memory_bytes is None else f"peak {format_bytes(trial.peak_memory_bytes)}"
