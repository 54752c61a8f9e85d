from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation import MIB, failure, measure, policy, replay, trial

from runners.replay_runner import ReplayRunner
from runners.trial import PlayoffResult, PlayoffSpec, TrialResult, TrialStatus, Verdict, Verification, WorkloadSpec
from tuner.objective import Objective
from tuner.pareto import Standings
from tuner.playoff import playoff_entrants, run_playoff

OBJECTIVE = Objective(memory_cap_bytes=20 * MIB)
WORKLOAD = WorkloadSpec(model_factory="model.py:build")


def timed(number: int, action: str, size: int, speed: float, **changes: Any) -> TrialResult:
    return trial(number, action, size, relative_speed=speed, relative_speed_spread=speed / 1000, **changes)


def entrants(*trials: TrialResult) -> list[int]:
    standings = Standings(OBJECTIVE)
    for each in trials:
        standings.add(each)
    baseline = next((t for t in trials if t.policy.key == policy().key and t.samples_per_second is not None), None)
    return [entrant.trial_number for entrant in playoff_entrants(standings, baseline)]


def test_close_ones_meet_and_distant_ones_do_not() -> None:
    assert entrants(timed(1, "block", 2, 1.0), timed(2, "mlp", 2, 0.95), timed(3, "attention", 1, 0.5)) == [1, 2]


def test_plain_training_that_fits_takes_part_however_slow() -> None:
    assert entrants(timed(1, "block", 2, 1.0), timed(2, "none", 1, 0.5)) == [1, 2]


def test_every_block_that_fits_takes_part_however_slow() -> None:
    assert entrants(timed(1, "mlp", 2, 1.0), timed(2, "block", 1, 0.5), timed(3, "block", 2, 0.6)) == [1, 3]
    assert entrants(timed(1, "mlp", 2, 1.0), timed(2, "block", 2, 0.5, peak_memory_bytes=21 * MIB)) == [1]


def test_what_the_compiler_rebuilds_within_a_budget_is_no_plain_training() -> None:
    by_compiler = replace(policy("none", 2), compile="blocks", compile_memory_budget=0.5)
    slow = timed(2, "none", 2, 0.5, policy=by_compiler, peak_memory_bytes=12 * MIB)
    assert entrants(timed(1, "block", 2, 1.0), slow) == [1]


def test_the_baseline_takes_part_although_it_does_not_fit() -> None:
    assert entrants(timed(0, "none", 2, 1.5), timed(1, "block", 2, 1.0), timed(2, "none", 1, 0.5)) == [1, 2, 0]


def test_a_baseline_that_was_never_timed_takes_no_part() -> None:
    lost = failure(0, TrialStatus.OUT_OF_MEMORY, "no room")
    assert entrants(lost, timed(1, "block", 2, 1.0), timed(2, "none", 1, 0.9)) == [1, 2]


def test_each_takes_part_once() -> None:
    assert entrants(timed(0, "none", 1, 1.0), timed(1, "block", 2, 0.99)) == [0, 1]


def test_an_unsure_one_is_close() -> None:
    unsure = trial(2, "mlp", 2, relative_speed=0.8, relative_speed_spread=0.12)
    assert entrants(timed(1, "block", 2, 1.0), unsure) == [1, 2]


def test_one_whose_machine_was_in_another_state_is_close() -> None:
    fastest = timed(1, "block", 2, 1.0, reference_step_time_s=2.0, reference_drift_ratio=1.02)
    for state in ({"reference_step_time_s": 2.6}, {"reference_step_time_s": 2.0, "reference_drift_ratio": 0.75}):
        assert entrants(fastest, timed(2, "mlp", 2, 0.8, **state)) == [1, 2]
        assert entrants(fastest, timed(2, "mlp", 2, 0.6, **state)) == [1]
    assert entrants(fastest, timed(2, "mlp", 2, 0.8, reference_step_time_s=2.05)) == [1]


def test_what_is_not_feasible_stays_out() -> None:
    mismatch = timed(2, "mlp", 2, 0.99, verification=Verification(verdict=Verdict.MISMATCH))
    over = timed(3, "attention", 2, 0.99, peak_memory_bytes=21 * MIB)
    assert entrants(timed(1, "block", 2, 1.0), mismatch, over) == [1]
    assert entrants(mismatch, over) == []


def test_there_are_few_entrants() -> None:
    trials = [timed(n, "block", 2, 1.0 - n / 1000) for n in range(1, 9)]
    found = entrants(timed(0, "none", 2, 2.0), *trials, timed(9, "none", 1, 0.9))
    assert found == [1, 2, 3, 9, 0]


def test_times_come_back_by_trial() -> None:
    one, two = trial(4, "block"), trial(6, "none", 1)
    playoff = run_playoff(replay(), [one, two], WORKLOAD, time_limit_s=60.0, timeout_s=60.0)
    assert not isinstance(playoff, str)
    assert playoff.trials == (4, 6)
    assert [set(times) for times in playoff.step_times_s] == [{one.step_time_s}, {two.step_time_s}]


def test_a_playoff_that_failed_is_one_line() -> None:
    class Failing(ReplayRunner):
        def playoff(self, spec: PlayoffSpec) -> PlayoffResult:
            assert spec.timeout_s == 60.0
            return PlayoffResult(failure="out of memory")

    assert (
        run_playoff(Failing(measure), [trial(0), trial(1)], WORKLOAD, time_limit_s=60.0, timeout_s=60.0)
        == "out of memory"
    )


@pytest.mark.parametrize("trials", [[], [trial(0)]], ids=["no trial", "one that does not fit"])
def test_without_a_feasible_trial_there_is_no_playoff(trials: list[TrialResult]) -> None:
    assert entrants(*trials) == []
