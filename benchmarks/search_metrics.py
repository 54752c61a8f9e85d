"""How good searches were: each judged by what an exhaustive one would find, then all seeds of one kind together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from replay_search import SearchTrace, TrialTrace
from search_problem import Best

from tuner.prediction.front_filling import hypervolume

#: A policy counts as found once one within this share of the best time was tried.
FOUND = 0.01
#: A front counts as covered at this share of the hypervolume.
COVERED = 0.99
#: Numbers of trials at which the share of the front is reported.
CHECKPOINTS = (10, 15, 25)
#: Trials that may run over the cap, since nothing is known before.
NUM_FREE_TRIALS = 3
#: Trials after which predictions are judged.
NUM_CALIBRATION_TRIALS = 6
#: Standard normal deviations on either side that hold 90 %.
_NINETY_PERCENT = 1.645


@dataclass(frozen=True)
class SearchScore:
    """One search.

    Attributes:
        num_trials: That were run.
        stopped_early: The sampler expected no further gain.
        num_to_best: Trials until one within 1 % of the best time; None where it was not reached.
        num_to_front: Trials until 99 % of the front's hypervolume; None where it was not reached.
        regrets: Share of the best time that the best trial so far takes longer, after each trial; infinite before a
            feasible one. Shape (num_trials,).
        covered: Share of the front after each trial; shape (num_trials,).
        num_over_cap: Trials over the cap after the first three.
        time_errors: Relative errors of the times predicted of trials after the first six, against the true ones.
        in_interval: Whether what was measured of each of these lay in its 90 % interval.
    """

    num_trials: int
    stopped_early: bool
    num_to_best: int | None
    num_to_front: int | None
    regrets: tuple[float, ...]
    covered: tuple[float, ...]
    num_over_cap: int
    time_errors: tuple[float, ...]
    in_interval: tuple[bool, ...]


def score_search(trace: SearchTrace, best: Best, cap_bytes: int) -> SearchScore:
    regrets = tuple(time / best.time - 1 for time in _best_so_far(trace.trials))
    covered = tuple(area / best.front for area in _areas(trace.trials, cap_bytes))
    judged = [
        _Judged(trial.predicted_time, trial.predicted_deviation or 0.0, trial.actual.time, trial.time, error)
        for trial in trace.trials[NUM_CALIBRATION_TRIALS:]
        if trial.predicted_time is not None and trial.time is not None and trial.actual is not None
        for error in (trial.standard_error or 0.0,)
    ]
    return SearchScore(
        num_trials=len(trace.trials),
        stopped_early=trace.stop_code == "no_further_gain",
        num_to_best=_first(regret <= FOUND for regret in regrets),
        num_to_front=_first(share >= COVERED for share in covered),
        regrets=regrets,
        covered=covered,
        num_over_cap=sum(trial.is_over_cap for trial in trace.trials[NUM_FREE_TRIALS:]),
        time_errors=tuple(abs(each.predicted / each.actual - 1) for each in judged),
        in_interval=tuple(each.is_in_interval() for each in judged),
    )


@dataclass(frozen=True)
class Summary:
    """All searches of one sampler on one problem, over seeds. Infinite trials mean that it was not reached.

    Attributes:
        regret_at_end: Median and 95th percentile.
        over_cap: Mean number of trials over the cap after the first three.
        covered: Medians at `CHECKPOINTS`.
        time_error: Median; None where nothing was predicted.
        in_interval: Share of measurements within their 90 % interval; None where nothing was predicted.
        num_trials: Median of trials run.
    """

    num_seeds: int
    to_best: tuple[float, float]
    regret_at_end: tuple[float, float]
    over_cap: float
    covered: tuple[float, ...]
    to_front: tuple[float, float]
    time_error: float | None
    in_interval: float | None
    num_trials: float


def summarize_searches(scores: Sequence[SearchScore]) -> Summary:
    errors = [error for score in scores for error in score.time_errors]
    hits = [hit for score in scores for hit in score.in_interval]
    return Summary(
        num_seeds=len(scores),
        to_best=median_and_p95([_or_never(score.num_to_best) for score in scores]),
        regret_at_end=median_and_p95([score.regrets[-1] for score in scores]),
        over_cap=statistics.mean(score.num_over_cap for score in scores),
        covered=tuple(statistics.median(_at(score.covered, number) for score in scores) for number in CHECKPOINTS),
        to_front=median_and_p95([_or_never(score.num_to_front) for score in scores]),
        time_error=statistics.median(errors) if errors else None,
        in_interval=statistics.mean(hits) if hits else None,
        num_trials=statistics.median(score.num_trials for score in scores),
    )


@dataclass(frozen=True)
class RegretCurve:
    """Quartiles of the regret after each trial, over seeds; infinite where nothing feasible was found yet."""

    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]


def regret_curve(scores: Sequence[SearchScore]) -> RegretCurve:
    """A search that ended keeps what it had found."""
    longest = max(score.num_trials for score in scores)
    table = [[_at(score.regrets, number) for score in scores] for number in range(1, longest + 1)]
    lower, median, upper = (tuple(percentile(row, share) for row in table) for share in (0.25, 0.5, 0.75))
    return RegretCurve(lower, median, upper)


def median_and_p95(values: Sequence[float]) -> tuple[float, float]:
    return percentile(values, 0.5), percentile(values, 0.95)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value with at least this share of all values at or below it; no mean of a number and infinity."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


@dataclass(frozen=True)
class _Judged:
    predicted: float
    deviation: float
    actual: float
    measured: float
    standard_error: float

    def is_in_interval(self) -> bool:
        """What is predicted is the true time; a measurement strays from it by its own standard error as well."""
        width = _NINETY_PERCENT * math.hypot(self.deviation, self.standard_error)
        return abs(self.predicted - self.measured) <= width


def _best_so_far(trials: Sequence[TrialTrace]) -> list[float]:
    times = [t.actual.time if t.is_feasible and t.actual is not None else math.inf for t in trials]
    return [float(time) for time in np.minimum.accumulate(times)] if times else []


def _areas(trials: Sequence[TrialTrace], cap_bytes: int) -> list[float]:
    areas = []
    peaks: list[float] = []
    speeds: list[float] = []
    for trial in trials:
        if trial.is_feasible and trial.actual is not None:
            peaks.append(trial.actual.peak_bytes)
            speeds.append(1 / trial.actual.time)
        areas.append(hypervolume(np.array(peaks), np.array(speeds), cap_bytes))
    return areas


def _first(reached: Iterable[bool]) -> int | None:
    return next((number for number, is_reached in enumerate(reached, start=1) if is_reached), None)


def _or_never(number: int | None) -> float:
    return math.inf if number is None else number


def _at(values: Sequence[float], number: int) -> float:
    """After so many trials, or at the end of a shorter search."""
    return values[min(number, len(values)) - 1]
