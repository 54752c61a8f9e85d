"""Which trial of a study is exported: the best, one by number, or the fastest under another cap."""

from __future__ import annotations

from tuner.export.base import ExportError
from tuner.memory_size import describe_bytes
from tuner.results import StudyResults, TrialRecord


def choose_trial(study: StudyResults, *, number: int | None = None, memory_cap_bytes: int | None = None) -> TrialRecord:
    """The trial to export; only feasible ones are ever chosen.

    Args:
        number: A trial of the study; None takes the best.
        memory_cap_bytes: A tighter cap than the study's; the fastest feasible trial within it is taken.

    Raises:
        ExportError: There is no such trial, or it must not be exported.
    """
    if number is not None:
        return _by_number(study, number)
    if memory_cap_bytes is not None:
        return _fastest_within(study, memory_cap_bytes)
    best = study.best_trial()
    if best is None:
        raise ExportError(
            f"study {study.study} has no feasible trial, so there is no best policy; raise memory_cap or allow more "
            "actions and smaller micro-batches, then run it again"
        )
    return best


def _by_number(study: StudyResults, number: int) -> TrialRecord:
    trial = study.trial(number)
    if trial is None:
        known = ", ".join(str(trial.number) for trial in study.trials if trial.feasible) or "none"
        raise ExportError(
            f"--trial is {number}, which study {study.study} does not have; feasible trials are {known}; "
            "name one of these"
        )
    if not trial.feasible:
        why = trial.infeasible_reason or trial.reason
        known = ", ".join(map(str, study.front)) or "none"
        raise ExportError(
            f"--trial is {number}, which is not feasible ({why}) and is therefore never exported; "
            f"the front of study {study.study} is {known}; name one of these"
        )
    return trial


def _fastest_within(study: StudyResults, memory_cap_bytes: int) -> TrialRecord:
    # The front is ordered from fast to slow, and whatever is feasible is no faster at no more memory than one on it.
    # The best trial comes before them: where trials were close, more than their own figures has decided on it.
    best = study.best_trial()
    for trial in (*([] if best is None else [best]), *study.front_trials()):
        if trial.peak_memory_bytes is not None and trial.peak_memory_bytes <= memory_cap_bytes:
            return trial
    peaks = [trial.peak_memory_bytes for trial in study.front_trials() if trial.peak_memory_bytes is not None]
    least = f"the least that any feasible trial needs is {describe_bytes(min(peaks))}" if peaks else "none is feasible"
    raise ExportError(
        f"--memory-cap is {describe_bytes(memory_cap_bytes)}, but in study {study.study} {least}; raise it"
    )
