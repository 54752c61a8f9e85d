"""The table of trials: all of them, or of thousands the most telling ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.predicted_text import measured_peak, measured_step_time, predicted_peak, predicted_step_time
from tuner.report.telling_trials import compared_and_front
from tuner.results import StudyResults, TrialRecord
from tuner.summary import StudySummary, spread_ratio, throughput_text

#: A browser lays out so many rows in no time, and nobody reads more.
_MAX_ROWS = 200
#: Of each way in which a trial can be no answer, so that each of them can be understood.
_MAX_OF_A_KIND = 15


@dataclass(frozen=True)
class TrialRow:
    """One trial in words; what was not measured is empty.

    Attributes:
        note: Best, on the front, or why it is no answer.
    """

    number: int
    status: str
    policy: str
    throughput: str
    num_steps: str
    step_time: str
    predicted_step_time: str
    peak: str
    predicted_peak: str
    proof: str
    note: str
    is_best: bool


@dataclass(frozen=True)
class TrialTable:
    """Attributes:
    num_left_out: Trials that are in results.json only.
    """

    rows: tuple[TrialRow, ...]
    num_left_out: int


def trial_table(results: StudyResults, summary: StudySummary) -> TrialTable:
    """Rows in order of number."""
    trials = results.trials
    shown = trials if len(trials) <= _MAX_ROWS else _most_telling(results, summary)
    return TrialTable(tuple(map(_row, shown)), len(trials) - len(shown))


def _most_telling(results: StudyResults, summary: StudySummary) -> Sequence[TrialRecord]:
    """What is compared, the playoff, some of each way to fail, the front, and the fastest of the rest."""
    chosen: dict[int, TrialRecord] = {}
    named = [telling.trial for telling in compared_and_front(results, summary)]
    entrants = [] if results.playoff is None else [results.trial(number) for number in results.playoff.trials]
    of_a_kind: dict[str, int] = defaultdict(int)
    for trial in (*named, *(entrant for entrant in entrants if entrant is not None)):
        chosen.setdefault(trial.number, trial)
    for trial in results.trials:
        kind = trial.status.value if trial.verification is None else trial.verification.verdict.value
        if not trial.feasible and of_a_kind[kind] < _MAX_OF_A_KIND:
            of_a_kind[kind] += 1
            chosen.setdefault(trial.number, trial)
    for trial in (*results.front_trials(), *sorted(results.trials, key=_speed, reverse=True)):
        if len(chosen) >= _MAX_ROWS:
            break
        chosen.setdefault(trial.number, trial)
    return sorted(chosen.values(), key=lambda trial: trial.number)


def _speed(trial: TrialRecord) -> tuple[bool, float]:
    return trial.feasible, trial.relative_speed or trial.samples_per_second or 0.0


def _row(trial: TrialRecord) -> TrialRow:
    return TrialRow(
        number=trial.number,
        status=trial.status.value,
        policy=trial.policy_summary,
        throughput="" if trial.samples_per_second is None else throughput_text(trial),
        num_steps="" if trial.num_steps is None else str(trial.num_steps),
        step_time=measured_step_time(trial),
        predicted_step_time=predicted_step_time(trial),
        peak=measured_peak(trial),
        predicted_peak=predicted_peak(trial),
        proof="" if trial.verification is None else trial.verification.verdict.value,
        note=_note(trial),
        is_best=trial.is_best,
    )


def _note(trial: TrialRecord) -> str:
    places = ["best"] if trial.is_best else ["on the front"] if trial.on_front else []
    if trial.is_baseline:
        places.append("baseline")
    if trial.infeasible_reason:
        places.append(trial.infeasible_reason)
    spread = spread_ratio(trial)
    if trial.samples_per_second is not None and spread is None:
        places.append("its spread is not known")
    return "; ".join(places)
