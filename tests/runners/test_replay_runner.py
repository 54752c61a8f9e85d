from __future__ import annotations

import pytest

from runners.base import RunnerError, TrialRunner
from runners.replay_runner import ReplayRunner, table_of
from runners.trial import InspectionSpec, ModelInspection, TrialResult, TrialSpec, TrialStatus, WorkloadSpec
from search_spaces.model_shape import ModelShape
from search_spaces.policy import BatchShape, RecomputePolicy

WORKLOAD = WorkloadSpec(model_factory="model.py:build")


def policy(micro_batch_size: int) -> RecomputePolicy:
    return RecomputePolicy(BatchShape.split(global_batch_size=8, micro_batch_size=micro_batch_size))


def spec(
    number: int, *, micro_batch_size: int = 2, cap: int | None = None, timeout_s: float | None = None
) -> TrialSpec:
    return TrialSpec(
        trial_number=number,
        policy=policy(micro_batch_size),
        workload=WORKLOAD,
        memory_cap_bytes=cap,
        timeout_s=timeout_s,
    )


def recorded(micro_batch_size: int, peak_bytes: int = 100) -> TrialResult:
    return TrialResult(
        trial_number=99,
        policy=policy(micro_batch_size),
        status=TrialStatus.COMPLETED,
        samples_per_second=7.0,
        peak_memory_bytes=peak_bytes,
    )


def answer(trial: TrialSpec) -> TrialResult:
    return recorded(trial.policy.batch.micro_batch_size, peak_bytes=100 * trial.policy.batch.micro_batch_size)


def numbers(results: object) -> list[int]:
    assert isinstance(results, (list, tuple))
    return [result.trial_number for result in results]


def test_a_recorded_result_comes_back_under_the_trials_own_number() -> None:
    runner: TrialRunner = ReplayRunner(table_of([recorded(2), recorded(4)]), latency_s=3.0)
    runner.submit(spec(5, micro_batch_size=4))
    (result,) = runner.collect(10.0)
    assert (result.trial_number, result.policy, result.wall_time_s) == (5, policy(4), 3.0)
    assert result.samples_per_second == 7.0


def test_a_policy_that_is_not_in_the_table_fails_with_its_key() -> None:
    runner = ReplayRunner(table_of([recorded(2)]))
    runner.submit(spec(0, micro_batch_size=8))
    (result,) = runner.collect(10.0)
    assert result.status is TrialStatus.FAILED
    assert result.reason == f"no trial of policy {policy(8).key} was recorded"


def test_trials_overtake_one_another_on_a_clock_that_jumps() -> None:
    runner = ReplayRunner(answer, capacity=3, latency_s=lambda trial: 30.0 - 10.0 * trial.trial_number)
    for number in range(3):
        runner.submit(spec(number))
    assert [numbers(runner.collect(1000.0)) for _ in range(3)] == [[2], [1], [0]]
    assert runner.clock_s == 30.0


def test_collect_waits_no_longer_than_it_was_told() -> None:
    runner = ReplayRunner(answer, latency_s=10.0)
    runner.submit(spec(0))
    assert runner.collect(4.0) == ()
    assert runner.clock_s == 4.0
    assert numbers(runner.collect(6.0)) == [0]


def test_trials_that_end_together_are_collected_together() -> None:
    runner = ReplayRunner(answer, capacity=2)
    runner.submit(spec(1))
    runner.submit(spec(0))
    assert numbers(runner.collect(1.0)) == [0, 1]


def test_waiting_for_nothing_takes_the_time_it_was_given() -> None:
    runner = ReplayRunner(answer)
    assert runner.collect(2.0) == ()
    assert runner.clock_s == 2.0


def test_a_trial_longer_than_its_limit_times_out_at_the_limit() -> None:
    runner = ReplayRunner(answer, latency_s=100.0)
    runner.submit(spec(0, timeout_s=60.0))
    (result,) = runner.collect(1000.0)
    assert result.status is TrialStatus.TIMED_OUT
    assert result.reason == "stopped after the time limit of 60 s"
    assert runner.clock_s == 60.0


def test_a_device_that_enforces_the_cap_runs_out_of_memory_above_it() -> None:
    runner = ReplayRunner(answer, capacity=2, enforces_cap=True)
    runner.submit(spec(0, micro_batch_size=2, cap=200))
    runner.submit(spec(1, micro_batch_size=4, cap=200))
    fits, breaks = runner.collect(10.0)
    assert fits.status is TrialStatus.COMPLETED
    assert breaks.status is TrialStatus.OUT_OF_MEMORY
    assert breaks.reason == "the device refused to allocate beyond 200 bytes"


def test_a_device_without_a_limit_measures_above_the_cap() -> None:
    runner = ReplayRunner(answer)
    runner.submit(spec(0, micro_batch_size=4, cap=200))
    assert [result.peak_memory_bytes for result in runner.collect(10.0)] == [400]


def test_cancel_answers_every_trial_in_flight_and_frees_the_runner() -> None:
    runner = ReplayRunner(answer, capacity=2)
    runner.submit(spec(0))
    runner.submit(spec(1))
    cancelled = runner.cancel()
    assert numbers(cancelled) == [0, 1]
    assert {result.status for result in cancelled} == {TrialStatus.CANCELLED}
    runner.submit(spec(2))
    assert numbers(runner.collect(10.0)) == [2]


def test_more_trials_than_capacity_are_refused() -> None:
    runner = ReplayRunner(answer, capacity=1)
    runner.submit(spec(0))
    with pytest.raises(RunnerError, match="trial 1 is one more than the 1 that may be in flight"):
        runner.submit(spec(1))


def test_a_number_in_flight_is_refused() -> None:
    runner = ReplayRunner(answer, capacity=2)
    runner.submit(spec(0))
    with pytest.raises(RunnerError, match="trial 0 is in flight already"):
        runner.submit(spec(0))


def test_a_closed_runner_takes_no_trial_and_closes_again() -> None:
    runner = ReplayRunner(answer)
    runner.submit(spec(0))
    runner.close()
    runner.close()
    assert runner.collect(10.0) == ()
    with pytest.raises(RunnerError, match="trial 1 was submitted after the runner was closed"):
        runner.submit(spec(1))


def test_the_recorded_inspection_comes_back() -> None:
    inspection = ModelInspection(shape=ModelShape(1), model_class="Model")
    runner = ReplayRunner(answer, inspection=inspection)
    assert runner.inspect(InspectionSpec(workload=WORKLOAD)) == inspection


def test_without_a_recorded_inspection_the_model_is_named() -> None:
    with pytest.raises(RunnerError, match=r"model\.py:build: no inspection of a model was recorded"):
        ReplayRunner(answer).inspect(InspectionSpec(workload=WORKLOAD))


def test_the_runner_says_what_it_is() -> None:
    runner = ReplayRunner(answer, capacity=4)
    assert runner.describe() == "replay of recorded trials, 4 at a time"
    assert runner.capacity() == 4
