"""The playoff: trials that are close to the fastest are timed again in turn, and those times name the winner."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from runners.base import TrialRunner
from runners.trial import PlayoffSpec, TrialResult, WorkloadSpec
from tuner.pareto import Standings, compare
from tuner.speed_ratio import STANDARD_ERRORS_OF_A_TIE, Playoff

#: Feasible trials this close to the fastest take part even where their spreads tell them apart: the spread within a
#: trial does not show what changed between two trials.
_CLOSE_RATIO = 0.1
#: Of those, beside the fastest: each entrant costs a step per round.
_MOST_CLOSE = 2
#: Rounds at most. On a quiet machine about ten are enough; the others wait for a neighbour to pause.
_MAX_ROUNDS = 100
#: Share of the search's time limit that it may take on a machine that does not become quiet.
_SHARE_OF_TIME_LIMIT = 0.25


def playoff_entrants(standings: Standings, baseline: TrialResult | None) -> list[TrialResult]:
    """The fastest feasible trial, those that may be as fast, what one would do by hand, and the baseline.

    By hand are plain training and recompute of every block, the fastest of each that fits. The baseline takes part
    although it may not fit, since everything is compared with it. Less than two is no playoff.

    Args:
        baseline: None where it could not be measured.
    """
    others = standings.by_speed()
    fastest = next(others, None)
    if fastest is None:
        return []
    close = islice((result for result in others if _may_be_as_fast(result, fastest)), _MOST_CLOSE)
    by_hand = (standings.fastest_plain(), standings.fastest_of_every_block())
    entrants = [fastest, *close, *filter(None, (*by_hand, baseline))]
    return list({result.trial_number: result for result in entrants}.values())


def run_playoff(
    runner: TrialRunner,
    entrants: Sequence[TrialResult],
    workload: WorkloadSpec,
    *,
    time_limit_s: float,
    timeout_s: float,
) -> Playoff | str:
    """Times the entrants in turn; one line where that failed.

    Args:
        time_limit_s: Of the search that came before; the playoff takes no more than a share of it.
        timeout_s: Of a trial.
    """
    spec = PlayoffSpec(
        policies=tuple(result.policy for result in entrants),
        workload=workload,
        max_rounds=_MAX_ROUNDS,
        timing_budget_s=_SHARE_OF_TIME_LIMIT * time_limit_s,
        timeout_s=timeout_s,
    )
    result = runner.playoff(spec)
    if result.failure is not None:
        return result.failure
    return Playoff(
        trials=tuple(entrant.trial_number for entrant in entrants),
        step_times_s=result.step_times_s,
        processor_shares=result.processor_shares,
    )


def _may_be_as_fast(result: TrialResult, fastest: TrialResult) -> bool:
    ratio = compare(result, fastest)
    if ratio is None:
        return False
    return ratio.value >= 1 - max(_CLOSE_RATIO, STANDARD_ERRORS_OF_A_TIE * (ratio.standard_error or 0.0))
