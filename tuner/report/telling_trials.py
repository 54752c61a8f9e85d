"""The few trials that a reader compares: the winner, what people would do without a search, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.results import StudyResults, TrialRecord
from tuner.summary import StudySummary

WINNER = "winner"
PLAIN = "plain training that fits"
EVERY_BLOCK = "every block recomputed"
BASELINE = "baseline"
FRONT = "front"

#: More bars than that are no picture any more.
_MAX_FRONT = 8


@dataclass(frozen=True)
class TellingTrial:
    """A trial and what it stands for, most important first."""

    trial: TrialRecord
    roles: tuple[str, ...]

    @property
    def title(self) -> str:
        """``Winner, every block recomputed``."""
        text = ", ".join(self.roles)
        return text[0].upper() + text[1:]

    @property
    def numbered_title(self) -> str:
        """``Winner, every block recomputed, trial 7``."""
        return f"{self.title}, trial {self.trial.number}"


@dataclass(frozen=True)
class TellingRow:
    """One trial in a table of them; a value for each column, empty where nothing was measured."""

    title: str
    policy: str
    values: tuple[str, ...]
    is_best: bool


def telling_row(told: TellingTrial, values: tuple[str, ...]) -> TellingRow:
    """The trial with what the table says of it."""
    return TellingRow(told.numbered_title, told.trial.policy_summary, values, told.trial.is_best)


def compared_trials(summary: StudySummary) -> list[TellingTrial]:
    """The winner, and those that it is compared with; each trial once, those that were not measured left out."""
    roles = (
        (summary.winner, WINNER),
        (summary.best_plain, PLAIN),
        (summary.recompute_all, EVERY_BLOCK),
        (summary.baseline, BASELINE),
    )
    return _merged([(trial, role) for trial, role in roles if trial is not None])


def compared_and_front(results: StudyResults, summary: StudySummary) -> list[TellingTrial]:
    """The compared trials, then the rest of the front from fast to small; of a long front, some of each stretch."""
    compared = compared_trials(summary)
    named = {telling.trial.number for telling in compared}
    others = [trial for trial in results.front_trials() if trial.number not in named]
    return [*compared, *(TellingTrial(trial, (FRONT,)) for trial in _spread_out(others))]


def _merged(named: Sequence[tuple[TrialRecord, str]]) -> list[TellingTrial]:
    roles: dict[int, list[str]] = {}
    trials: dict[int, TrialRecord] = {}
    for trial, role in named:
        trials.setdefault(trial.number, trial)
        roles.setdefault(trial.number, []).append(role)
    return [TellingTrial(trial, tuple(roles[number])) for number, trial in trials.items()]


def _spread_out(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    if len(trials) <= _MAX_FRONT:
        return list(trials)
    last = len(trials) - 1
    return [trials[round(index * last / (_MAX_FRONT - 1))] for index in range(_MAX_FRONT)]
