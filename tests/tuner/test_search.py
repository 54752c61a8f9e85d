from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import simulation
from simulation import SHAPE, measure, replay

from runners.trial import TrialResult, TrialSpec, TrialStatus, WorkloadSpec, failed_trial
from search_spaces.ablation import plain_policies
from search_spaces.choices import SearchChoices
from search_spaces.policy import RecomputePolicy
from search_spaces.product_space import ProductSpace
from search_spaces.two_action import two_action_space
from tuner.objective import Objective, Score
from tuner.sampling.policy_study import PolicyStudy, open_policy_study
from tuner.sampling.registry import make_sampler
from tuner.search import Search
from tuner.stopping import BaselineFailed, NothingLeft, NumTrials, StopReason, TimeLimit, TooManyFailures

CHOICES = SearchChoices(SHAPE, 2, (1, 2), ("none", "block"))
PLAN = plain_policies(CHOICES)
OBJECTIVE = Objective(memory_cap_bytes=20 * simulation.MIB)
WORKLOAD = WorkloadSpec(model_factory="model.py:build")
NUM_POLICIES = 8


class Log:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.started_policies: list[RecomputePolicy] = []
        self.results: list[TrialResult] = []
        self.events: list[str] = []

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        self.started_policies.append(policy)
        self.events.append(f"start {trial_number}")

    def finished(self, result: TrialResult, score: Score) -> None:
        self.results.append(result)
        self.events.append(f"end {result.trial_number}")


@pytest.fixture
def space() -> ProductSpace:
    return two_action_space(CHOICES)


def open_study(space: ProductSpace, sampler: str = "grid") -> PolicyStudy:
    return open_policy_study("study", space=space, sampler=make_sampler(sampler, space, seed=0))


def make_search(study: PolicyStudy, runner: Any, log: Log, **changes: Any) -> Search:
    options: dict[str, Any] = {
        "objective": OBJECTIVE,
        "rules": [BaselineFailed(), TooManyFailures(), NothingLeft(), NumTrials(100), TimeLimit(1000.0)],
        "make_spec": lambda number, policy: TrialSpec(trial_number=number, policy=policy, workload=WORKLOAD),
        "listeners": [log],
        "plan": PLAN,
    }
    return Search(study, runner, **{**options, **changes})


def search(study: PolicyStudy, runner: Any, **changes: Any) -> tuple[StopReason, Log]:
    log = Log()
    return make_search(study, runner, log, **changes).run(), log


@pytest.mark.parametrize("sampler", ["grid", "tpe", "random"])
def test_a_small_space_ends_when_each_policy_was_measured_once(space: ProductSpace, sampler: str) -> None:
    reason, log = search(open_study(space, sampler), replay())
    assert reason.message == f"space exhausted: all {NUM_POLICIES} policies were tried"
    assert sorted(result.policy.key for result in log.results) == sorted(policy.key for policy in space.policies())


def test_several_at_once_measure_each_policy_once(space: ProductSpace) -> None:
    runner = replay(capacity=3, latency_s=lambda spec: 1.0 + spec.trial_number % 3)
    _, log = search(open_study(space), runner)
    assert sorted(result.policy.key for result in log.results) == sorted(policy.key for policy in space.policies())


def test_the_plan_comes_first_and_in_order(space: ProductSpace) -> None:
    _, log = search(open_study(space, "random"), replay())
    assert tuple(log.started_policies[: len(PLAN)]) == PLAN


def test_nothing_starts_before_the_baseline_has_ended(space: ProductSpace) -> None:
    _, log = search(open_study(space), replay(capacity=4))
    assert log.events[:3] == ["start 0", "end 0", "start 1"]
    assert log.events[3:6] == ["start 2", "start 3", "start 4"]


def test_a_baseline_lost_with_its_node_is_tried_again_before_all_others(space: ProductSpace) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        return failed_trial(spec, TrialStatus.NODE_LOST, "gone") if spec.trial_number == 0 else measure(spec)

    _, log = search(open_study(space), replay(outcome, capacity=4))
    assert log.started_policies[:2] == [PLAN[0], PLAN[0]]
    assert log.events[:5] == ["start 0", "end 0", "start 1", "end 1", "start 2"]


def test_as_many_trials_as_asked_for(space: ProductSpace) -> None:
    reason, log = search(open_study(space), replay(capacity=3), rules=[NumTrials(5)])
    assert reason.message == "all 5 trials were run"
    assert len(log.results) == 5


def test_a_lost_trial_is_not_one_of_those_asked_for(space: ProductSpace) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        return failed_trial(spec, TrialStatus.NODE_LOST, "gone") if spec.trial_number == 2 else measure(spec)

    _, log = search(open_study(space), replay(outcome), rules=[NumTrials(5)])
    assert sum(result.status is TrialStatus.COMPLETED for result in log.results) == 5


def test_a_model_that_does_not_train_plainly_ends_the_search_at_once(space: ProductSpace) -> None:
    runner = replay(lambda spec: failed_trial(spec, TrialStatus.FAILED, "h.0: shapes differ"))
    reason, log = search(open_study(space), runner)
    assert reason.is_failure
    assert reason.message == "the model does not train without recompute: h.0: shapes differ"
    assert len(log.results) == 1


def test_a_baseline_that_runs_out_of_memory_is_no_reason_to_stop(space: ProductSpace) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        return failed_trial(spec, TrialStatus.OUT_OF_MEMORY, "no") if spec.trial_number == 0 else measure(spec)

    reason, log = search(open_study(space), replay(outcome))
    assert reason.code == "space_exhausted"
    assert len(log.results) == NUM_POLICIES


def test_failures_in_a_row_end_the_search_and_are_named(space: ProductSpace) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        return measure(spec) if spec.trial_number < 2 else failed_trial(spec, TrialStatus.FAILED, "cannot run twice")

    reason, log = search(open_study(space), replay(outcome), rules=[TooManyFailures(limit=3)])
    assert reason.is_failure
    assert reason.message == "3 trials in a row failed, the last one: cannot run twice"
    assert len(log.results) == 5


def test_the_time_limit_lets_trials_in_flight_end(space: ProductSpace) -> None:
    log = Log()
    rules = [TimeLimit(100.0)]
    first = make_search(open_study(space), replay(capacity=2), log, rules=rules, previous_elapsed_s=99.9)
    reason = first.run(pause=lambda: time.sleep(0.15 if log.started_policies else 0.0))
    assert reason.message == "the time limit of 100 s was reached"
    assert len(log.results) == len(log.started_policies) == 1


def test_earlier_sessions_count_into_the_time_limit(space: ProductSpace) -> None:
    reason, log = search(open_study(space), replay(), previous_elapsed_s=2000.0)
    assert reason.code == "time_limit"
    assert log.results == []


class NoNode:
    """A cluster that has lost all of its nodes."""

    def capacity(self) -> int:
        return 0

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        return ()


def test_a_cluster_without_nodes_does_not_hold_a_search_for_ever(space: ProductSpace) -> None:
    reason, _ = search(open_study(space), NoNode(), rules=[TimeLimit(0.05)])
    assert reason.code == "time_limit"


def stop_after(log: Log, num_results: int) -> Callable[[], None]:
    def pause() -> None:
        if len(log.results) >= num_results:
            raise KeyboardInterrupt("left")

    return pause


@pytest.mark.parametrize("num_results", range(1, NUM_POLICIES))
def test_a_search_left_anywhere_and_taken_up_again_measures_the_same(space: ProductSpace, num_results: int) -> None:
    study, log = open_study(space), Log()
    first = make_search(study, replay(capacity=2, latency_s=lambda spec: 1.0 + spec.trial_number % 2), log)
    with pytest.raises(KeyboardInterrupt, match="left"):
        first.run(pause=stop_after(log, num_results))
    first.cancel()
    lost = [result.policy for result in log.results if result.status is TrialStatus.CANCELLED]
    baseline, *others = PLAN
    _, resumed = search(study, replay(capacity=2), previous=log.results, plan=[baseline, *lost, *others])
    measured = [r.policy.key for r in log.results + resumed.results if r.status is TrialStatus.COMPLETED]
    assert sorted(measured) == sorted(policy.key for policy in space.policies())
    assert resumed.started_policies[: len(lost)] == lost


def test_cancelled_trials_are_told_and_reported(space: ProductSpace) -> None:
    study, log = open_study(space), Log()
    left = make_search(study, replay(capacity=3, latency_s=lambda spec: 1.0 + spec.trial_number), log)
    with pytest.raises(KeyboardInterrupt, match="left"):
        left.run(pause=stop_after(log, 2))
    left.cancel()
    assert [result.trial_number for result in log.results] == [0, 1, 2, 3]
    assert [result.status for result in log.results[2:]] == [TrialStatus.CANCELLED] * 2
    assert study.results() == log.results
    assert study.num_counted_trials() == 2


def test_a_policy_queued_by_a_dead_driver_is_not_tried_twice(space: ProductSpace) -> None:
    study = open_study(space)
    assert study.enqueue(PLAN[3])
    _, log = search(study, replay())
    assert log.started_policies[0] == PLAN[3]
    assert len(log.started_policies) == len(set(log.started_policies)) == NUM_POLICIES
