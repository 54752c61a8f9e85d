from __future__ import annotations

import pytest

from runners.trial import TrialStatus
from tuner.stopping import (
    BaselineFailed,
    NothingLeft,
    NumTrials,
    Progress,
    StopRule,
    TimeLimit,
    TooManyFailures,
    count_failed_in_a_row,
    first_reason,
)

RULES: list[StopRule] = [BaselineFailed(), TooManyFailures(3), NothingLeft(), NumTrials(30), TimeLimit(600)]


@pytest.mark.parametrize(
    ("rule", "before", "after", "code", "message"),
    [
        (NumTrials(30), Progress(num_trials=29), Progress(num_trials=30), "num_trials", "all 30 trials were run"),
        (
            TimeLimit(600),
            Progress(elapsed_s=599.9),
            Progress(elapsed_s=600.0),
            "time_limit",
            "the time limit of 600 s was reached",
        ),
        (
            NothingLeft(),
            Progress(num_trials=12),
            Progress(num_trials=12, space_exhausted=True),
            "space_exhausted",
            "space exhausted: all 12 policies were tried",
        ),
        (
            BaselineFailed(),
            Progress(num_failed_in_a_row=2),
            Progress(baseline_failure="forward takes no argument labels"),
            "baseline_failed",
            "the model does not train without recompute: forward takes no argument labels",
        ),
        (
            TooManyFailures(3),
            Progress(num_failed_in_a_row=2, last_failure="block 3 did not repeat itself"),
            Progress(num_failed_in_a_row=3, last_failure="block 3 did not repeat itself"),
            "too_many_failures",
            "3 trials in a row failed, the last one: block 3 did not repeat itself",
        ),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "should_stop") else None,
)
def test_a_rule_stops_where_its_limit_is_reached_and_says_why(
    rule: StopRule, before: Progress, after: Progress, code: str, message: str
) -> None:
    assert rule.should_stop(before) is None
    reason = rule.should_stop(after)
    assert reason is not None
    assert (reason.code, reason.message) == (code, message)
    assert reason.is_failure == (code in ("baseline_failed", "too_many_failures"))


def test_a_search_goes_on_while_no_rule_applies() -> None:
    assert first_reason(RULES, Progress(num_trials=29, elapsed_s=10, num_failed_in_a_row=2)) is None


def test_the_first_of_several_reasons_is_given() -> None:
    reason = first_reason(RULES, Progress(num_trials=30, elapsed_s=1000, baseline_failure="a bug"))
    assert reason is not None
    assert reason.code == "baseline_failed"


def test_the_plain_placements_of_a_model_that_cannot_recompute_do_not_stop_it() -> None:
    """Attention, MLP, both, block and segment fail at the largest micro-batch, and block at three others."""
    assert TooManyFailures().should_stop(Progress(num_failed_in_a_row=8)) is None


@pytest.mark.parametrize(
    ("statuses", "count"),
    [
        ([], 0),
        (["FAILED", "FAILED"], 2),
        (["FAILED", "COMPLETED", "FAILED"], 1),
        (["FAILED", "OUT_OF_MEMORY"], 0),
        (["FAILED", "TIMED_OUT"], 0),
        (["COMPLETED", "FAILED", "NODE_LOST", "CANCELLED", "FAILED"], 2),
    ],
)
def test_failures_in_a_row(statuses: list[str], count: int) -> None:
    assert count_failed_in_a_row(map(TrialStatus, statuses)) == count
