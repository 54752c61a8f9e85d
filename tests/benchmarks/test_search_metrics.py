from __future__ import annotations

import math

import pytest
from replay_search import SearchTrace, TrialTrace
from search_metrics import median_and_p95, percentile, regret_curve, score_search, summarize_searches
from search_problem import Actual, Best

CAP_BYTES = 100
#: The fastest within the cap takes 1.0 and has a peak of 80; the front goes on to 2.0 at 50: 20 x 1 + 30 x 1/2.
BEST = Best(time=1.0, front=35.0)


def trial(time: float, peak: float, *, predicted: float | None = None, deviation: float = 0.1) -> TrialTrace:
    """A trial that measured the truth, with a standard error of 0.1."""
    return TrialTrace(
        actual=Actual(time, peak),
        is_feasible=peak <= CAP_BYTES,
        is_over_cap=peak > CAP_BYTES,
        time=time,
        standard_error=0.1,
        predicted_time=predicted,
        predicted_deviation=None if predicted is None else deviation,
    )


FAILED = TrialTrace(None, False, False, None, None, None, None)


def test_regret_is_that_of_the_best_feasible_trial_so_far() -> None:
    trace = SearchTrace((trial(0.9, 120), FAILED, trial(1.5, 90), trial(2.0, 50), trial(1.005, 80)), "num_trials")
    score = score_search(trace, BEST, CAP_BYTES)
    assert score.regrets == pytest.approx((math.inf, math.inf, 0.5, 0.5, 0.005))
    assert score.num_to_best == 5
    assert not score.stopped_early


def test_front_covered_is_the_area_over_that_of_all_policies() -> None:
    trace = SearchTrace((trial(0.9, 120), trial(2.0, 50), trial(1.0, 80)), "no_further_gain")
    score = score_search(trace, BEST, CAP_BYTES)
    assert score.covered == pytest.approx((0.0, 25 / 35, 1.0))
    assert score.num_to_front == 3
    assert score.stopped_early


def test_first_three_trials_may_be_over_the_cap() -> None:
    trace = SearchTrace((*[trial(0.9, 120)] * 5, trial(1.0, 80)), "num_trials")
    assert score_search(trace, BEST, CAP_BYTES).num_over_cap == 2


def test_predictions_count_after_calibration_and_intervals_hold_the_trials_own_error() -> None:
    early = trial(1.0, 80, predicted=9.0)
    # 1.645 times the square root of 0.1^2 + 0.1^2 is 0.2326.
    later = [trial(1.0, 80, predicted=1.23), trial(1.0, 80, predicted=1.24), FAILED]
    score = score_search(SearchTrace((*[early] * 6, *later), "num_trials"), BEST, CAP_BYTES)
    assert score.time_errors == pytest.approx((0.23, 0.24))
    assert score.in_interval == (True, False)


def test_what_was_not_reached_is_never_averaged() -> None:
    reached = score_search(SearchTrace((trial(1.0, 80),), "num_trials"), BEST, CAP_BYTES)
    missed = score_search(SearchTrace((trial(1.5, 80),), "num_trials"), BEST, CAP_BYTES)
    assert summarize_searches([reached, reached, missed]).to_best == (1, math.inf)
    assert summarize_searches([reached, missed, missed]).to_best == (math.inf, math.inf)


def test_searches_that_ended_keep_what_they_had() -> None:
    short = score_search(SearchTrace((trial(1.5, 80),), "no_further_gain"), BEST, CAP_BYTES)
    long = score_search(SearchTrace((trial(2.0, 80), trial(1.0, 80)), "num_trials"), BEST, CAP_BYTES)
    curve = regret_curve([short, long])
    assert curve.lower == pytest.approx((0.5, 0.0))
    assert curve.upper == pytest.approx((1.0, 0.5))
    assert summarize_searches([short]).covered == pytest.approx((20 / 1.5 / 35,) * 3)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([3, 1, 2], 0.5, 2, id="middle"),
        pytest.param([1, 2], 0.5, 1, id="lower of two middles"),
        pytest.param(list(range(1, 21)), 0.95, 19, id="one of twenty may be above"),
        pytest.param(list(range(1, 11)), 0.95, 10, id="none of ten"),
    ],
)
def test_percentile_is_one_of_the_values(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected
    assert median_and_p95(values)[0] == percentile(values, 0.5)
