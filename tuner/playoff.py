"""The playoff: trials that are close to the fastest are timed again in turn, and those times name the winner."""

from __future__ import annotations

from collections.abc import Sequence

from runners.base import TrialRunner
from runners.trial import PlayoffSpec, TrialResult, WorkloadSpec
from tuner.objective import Objective
from tuner.pareto import compare, feasible_by_speed
from tuner.speed_ratio import STANDARD_ERRORS_OF_A_TIE, Playoff

#: Feasible trials this close to the fastest take part even where their spreads tell them apart: the spread within a
#: trial does not show what changed between two trials.
_CLOSE_RATIO = 0.1
#: Trials in one playoff: each costs a step per round.
_MAX_ENTRANTS = 5


def playoff_entrants(results: Sequence[TrialResult], objective: Objective, *, baseline_key: str) -> list[TrialResult]:
    """The fastest feasible trial, those that may be as fast, the fastest plain one that fits, and the baseline.

    The baseline takes part although it may not fit, where it could be measured at all: everything is compared with it.
    Less than two is no playoff.
    """
    ranked = feasible_by_speed(results, objective)
    if not ranked:
        return []
    fastest = ranked[0]
    close = [result for result in ranked[1:] if _may_be_as_fast(result, fastest)]
    plain = [result for result in ranked if not result.policy.recomputes][:1]
    baseline = [r for r in results if r.policy.key == baseline_key and r.samples_per_second is not None][-1:]
    entrants = [fastest, *close[: _MAX_ENTRANTS - 3], *plain, *baseline]
    return list({result.trial_number: result for result in entrants}.values())


def run_playoff(
    runner: TrialRunner, entrants: Sequence[TrialResult], workload: WorkloadSpec, *, timeout_s: float
) -> Playoff | str:
    """Times the entrants in turn; one line where that failed."""
    spec = PlayoffSpec(policies=tuple(result.policy for result in entrants), workload=workload, timeout_s=timeout_s)
    result = runner.playoff(spec)
    if result.failure is not None:
        return result.failure
    return Playoff(trials=tuple(entrant.trial_number for entrant in entrants), step_times_s=result.step_times_s)


def _may_be_as_fast(result: TrialResult, fastest: TrialResult) -> bool:
    ratio = compare(result, fastest)
    if ratio is None:
        return False
    return ratio.value >= 1 - max(_CLOSE_RATIO, STANDARD_ERRORS_OF_A_TIE * (ratio.standard_error or 0.0))
