from __future__ import annotations

import math
from typing import Any

import pytest

from runners.trial import TrialResult, TrialStatus, Verdict, Verification
from search_spaces.policy import BatchShape, RecomputePolicy
from tuner.objective import Objective, Speed, ranking_speeds

CAP_BYTES = 1000
POLICY = RecomputePolicy(BatchShape(2, 2, 1, 4))
MATCH = Verification(verdict=Verdict.MATCH)


def completed(**changes: Any) -> TrialResult:
    fields: dict[str, Any] = {
        "trial_number": 3,
        "policy": POLICY,
        "status": TrialStatus.COMPLETED,
        "samples_per_second": 50.0,
        "relative_speed": 0.8,
        "peak_memory_bytes": 900,
        "verification": MATCH,
    }
    return TrialResult(**{**fields, **changes})


def ended(status: TrialStatus, reason: str | None = "a reason", **changes: Any) -> TrialResult:
    return TrialResult(trial_number=3, policy=POLICY, status=status, reason=reason, **changes)


def test_a_completed_trial_within_the_cap_is_feasible() -> None:
    score = Objective(CAP_BYTES).score(completed())
    assert score.feasible
    assert score.values == (0.8, 900.0)
    assert score.constraints == {"memory": pytest.approx(-0.1), "proof": 0.0}


def test_a_peak_of_exactly_the_cap_is_within_it() -> None:
    score = Objective(CAP_BYTES).score(completed(peak_memory_bytes=CAP_BYTES))
    assert score.feasible
    assert score.constraints["memory"] == 0.0


def test_over_the_cap_is_finished_and_infeasible_and_says_by_how_much() -> None:
    score = Objective(CAP_BYTES).score(completed(peak_memory_bytes=1250))
    assert score.infeasible_reason == "its peak is 25.0% over the cap"
    assert score.values == (0.8, 1250.0)
    assert score.constraints == {"memory": 0.25, "proof": 0.0}


@pytest.mark.parametrize("proof_required", [True, False])
def test_a_mismatch_is_never_feasible(proof_required: bool) -> None:
    mismatch = Verification(verdict=Verdict.MISMATCH, reason="gradient of h.0.mlp differs")
    score = Objective(CAP_BYTES, proof_required=proof_required).score(completed(verification=mismatch))
    assert score.infeasible_reason == "it trains another model: gradient of h.0.mlp differs"
    assert score.constraints["proof"] == 1.0


@pytest.mark.parametrize("verification", [None, Verification(verdict=Verdict.UNVERIFIED)], ids=["absent", "unverified"])
def test_without_a_proof_only_a_user_who_wanted_none_gets_a_feasible_policy(verification: Verification | None) -> None:
    result = completed(verification=verification)
    required, unwanted = (Objective(CAP_BYTES, proof_required=wanted).score(result) for wanted in (True, False))
    assert required.infeasible_reason == "it is not proven to train the same model"
    assert required.constraints["proof"] == 1.0
    assert unwanted.feasible
    assert unwanted.constraints["proof"] == 0.0


def test_out_of_memory_is_finished_with_what_is_known_of_it() -> None:
    score = Objective(CAP_BYTES).score(ended(TrialStatus.OUT_OF_MEMORY, "the device refused 2 GiB"))
    assert score.infeasible_reason == "out of memory: the device refused 2 GiB"
    assert score.values == (0.0, CAP_BYTES + 1)
    assert score.constraints["memory"] == pytest.approx(1 / CAP_BYTES)
    assert score.constraints["proof"] == 1.0


@pytest.mark.parametrize(("reached", "told"), [(400, CAP_BYTES + 1), (1700, 1700)])
def test_out_of_memory_peaks_are_at_least_what_was_reached_and_over_the_cap(reached: int, told: int) -> None:
    score = Objective(CAP_BYTES).score(ended(TrialStatus.OUT_OF_MEMORY, peak_memory_bytes=reached))
    assert score.values == (0.0, told)


def test_out_of_memory_keeps_the_proof_constraint_where_none_is_wanted() -> None:
    score = Objective(CAP_BYTES, proof_required=False).score(ended(TrialStatus.OUT_OF_MEMORY))
    assert score.constraints["proof"] == 0.0
    assert not score.feasible


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (TrialStatus.FAILED, "failed: a reason"),
        (TrialStatus.TIMED_OUT, "timed out: a reason"),
        (TrialStatus.NODE_LOST, "node lost: a reason"),
        (TrialStatus.CANCELLED, "cancelled: a reason"),
    ],
)
def test_what_measured_nothing_teaches_nothing(status: TrialStatus, reason: str) -> None:
    score = Objective(CAP_BYTES).score(ended(status))
    assert score.values is None
    assert score.constraints == {}
    assert score.infeasible_reason == reason


@pytest.mark.parametrize("status", TrialStatus)
def test_every_status_is_settled_and_constraints_come_with_values_in_one_order(status: TrialStatus) -> None:
    result = completed() if status is TrialStatus.COMPLETED else ended(status)
    score = Objective(CAP_BYTES).score(result)
    assert list(score.constraints) == (["memory", "proof"] if score.values is not None else [])
    assert score.feasible == (status is TrialStatus.COMPLETED)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, 0.0, -1.0])
def test_a_throughput_that_was_not_measured_is_never_told(bad: float | None) -> None:
    score = Objective(CAP_BYTES).score(completed(samples_per_second=bad))
    assert score.values is None
    assert score.infeasible_reason == "its throughput was not measured"


def test_a_peak_that_was_not_measured_is_never_told() -> None:
    score = Objective(CAP_BYTES).score(completed(peak_memory_bytes=None))
    assert score.values is None
    assert score.infeasible_reason == "its peak memory was not measured"


def test_without_the_reference_a_trial_is_feasible_but_not_told_in_another_unit() -> None:
    score = Objective(CAP_BYTES).score(completed(relative_speed=None))
    assert score.feasible
    assert score.values is None


def test_a_study_without_reference_learns_samples_per_second() -> None:
    score = Objective(CAP_BYTES, has_reference=False).score(completed(relative_speed=None))
    assert score.values == (50.0, 900.0)


def test_ranking_uses_relative_speed_where_all_have_it() -> None:
    results = [completed(relative_speed_spread=0.01), ended(TrialStatus.FAILED), completed(relative_speed=1.2)]
    assert ranking_speeds(results) == [Speed(0.8, 0.01), None, Speed(1.2, None)]


def test_ranking_falls_back_for_all_where_one_lacks_relative_speed() -> None:
    steps = {"step_time_s": 0.5, "step_time_spread_s": 0.01}
    results = [completed(**steps), completed(relative_speed=None, samples_per_second=40.0)]
    assert ranking_speeds(results) == [Speed(50.0, 1.0), Speed(40.0, None)]


def test_ranking_ignores_spreads_that_are_no_number() -> None:
    assert ranking_speeds([completed(relative_speed_spread=math.nan)]) == [Speed(0.8, None)]
