from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from runners.replay_runner import ReplayRunner
from runners.trial import TrialResult, TrialSpec, TrialStatus, Verdict, Verification, WorkloadSpec, failed_trial
from search_spaces.ablation import plain_policies
from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.product_space import ProductSpace
from search_spaces.two_action import two_action_space
from tuner.objective import Objective
from tuner.pareto import Standings, Winner
from tuner.sampling.policy_sampler import SpaceExhausted
from tuner.sampling.policy_study import PolicyStudy, Proposal, open_policy_study
from tuner.sampling.registry import make_sampler

optuna.logging.set_verbosity(optuna.logging.WARNING)

OBJECTIVE = Objective(memory_cap_bytes=3000)
UNITS = (("attention", "attn"), ("mlp", "mlp"))
CHOICES = SearchChoices(
    ModelShape(1, (BlockList("h", "Block", 12, UNITS),)), 8, (1, 2, 4, 8), ("none", "attention", "mlp", "block")
)
#: Bytes that one block keeps per sample, and how much longer a step takes when all blocks are recomputed.
KEPT_BYTES = {"none": 60, "attention": 45, "mlp": 35, "block": 5}
SLOWER = {"none": 0.0, "attention": 0.1, "mlp": 0.08, "block": 0.3}
WORKLOAD = WorkloadSpec(model_factory="model.py:build")


@pytest.fixture
def space() -> ProductSpace:
    return two_action_space(CHOICES)


def measure(spec: TrialSpec) -> TrialResult:
    actions = spec.policy.placement[0].actions()
    batch = spec.policy.batch
    step_time_s = 1 + sum(SLOWER[a] for a in actions) / 12 + 0.04 * batch.gradient_accumulation_steps
    return TrialResult(
        trial_number=spec.trial_number,
        policy=spec.policy,
        status=TrialStatus.COMPLETED,
        samples_per_second=8 / step_time_s,
        relative_speed=1 / step_time_s,
        relative_speed_spread=0.0,
        peak_memory_bytes=500 + batch.micro_batch_size * sum(KEPT_BYTES[a] for a in actions),
        verification=Verification(verdict=Verdict.MATCH),
    )


def winner_of(results: list[TrialResult]) -> Winner | None:
    standings = Standings(OBJECTIVE)
    for result in results:
        standings.add(result)
    return standings.front_with_winner()[1]


def spec_of(proposal: Proposal, **changes: Any) -> TrialSpec:
    return TrialSpec(trial_number=proposal.trial_number, policy=proposal.policy, workload=WORKLOAD, **changes)


def open_study(space: ProductSpace, storage: str | None = None, *, sampler: str = "tpe") -> PolicyStudy:
    return open_policy_study("study", space=space, sampler=make_sampler(sampler, space, seed=1), storage=storage)


def search(study: PolicyStudy, runner: ReplayRunner, num_trials: int) -> list[TrialResult]:
    """Keeps the runner full until this many trials have ended."""
    results: list[TrialResult] = []
    num_asked = 0
    while len(results) < num_trials:
        while num_asked < num_trials and num_asked - len(results) < runner.capacity():
            proposal = study.ask()
            runner.submit(spec_of(proposal, memory_cap_bytes=OBJECTIVE.memory_cap_bytes, timeout_s=60.0))
            num_asked += 1
        for result in runner.collect(10.0):
            assert study.tell(result, OBJECTIVE.score(result))
            results.append(result)
    return results


def test_two_hundred_trials_on_a_flaky_cluster_end_with_the_best_policy(space: ProductSpace) -> None:
    """Eight at a time; some are too slow, one node goes away, and what breaks the cap runs out of memory."""

    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 23:
            return failed_trial(spec, TrialStatus.NODE_LOST, "node gpu-03 went away")
        return measure(spec)

    runner = ReplayRunner(
        outcome,
        capacity=8,
        latency_s=lambda spec: 90.0 if spec.trial_number % 50 == 17 else 1.0 + spec.trial_number * 7 % 5,
        enforces_cap=True,
    )
    study = open_study(space)
    for policy in plain_policies(CHOICES):
        assert study.enqueue(policy)
    results = search(study, runner, 200)

    counts = {status: sum(r.status is status for r in results) for status in TrialStatus}
    assert counts[TrialStatus.TIMED_OUT] == 4
    assert counts[TrialStatus.NODE_LOST] == 1
    assert counts[TrialStatus.OUT_OF_MEMORY] > 0
    lost = [r.policy for r in results if r.status is TrialStatus.NODE_LOST]
    tried_once = [r.policy for r in results if r.policy not in lost]
    assert len(set(tried_once)) == len(tried_once)
    assert sum(r.policy in lost for r in results) == 2
    assert study.num_counted_trials() == 199

    every = [measure(spec_of(Proposal(i, policy))) for i, policy in enumerate(space.policies())]
    best, found = winner_of(every), winner_of(results)
    assert best is not None
    assert found is not None
    assert best.result.relative_speed is not None
    assert found.result.relative_speed is not None
    assert found.result.relative_speed >= 0.99 * best.result.relative_speed


def test_a_search_of_the_whole_grid_sees_every_policy(space: ProductSpace) -> None:
    study = open_study(space, sampler="grid")
    num_policies = space.count_up_to(10_000)
    results = search(study, ReplayRunner(measure, capacity=4), num_policies)
    assert {r.policy for r in results} == set(space.policies())
    with pytest.raises(SpaceExhausted, match="space exhausted"):
        study.ask()


def test_a_late_result_is_dropped_and_the_driver_goes_on(space: ProductSpace, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    slow = open_study(space, storage)
    proposal = slow.ask()
    other = open_study(space, storage)
    assert other.close_interrupted(OBJECTIVE.score) == [proposal]
    result = measure(spec_of(proposal))
    assert not slow.tell(result, OBJECTIVE.score(result))
    assert slow.ask().trial_number == proposal.trial_number + 1


def test_a_result_that_nobody_asked_for_is_an_error(space: ProductSpace) -> None:
    result = measure(spec_of(Proposal(7, next(space.policies()))))
    with pytest.raises(KeyError, match="7"):
        open_study(space).tell(result, OBJECTIVE.score(result))


def test_a_policy_that_the_space_cannot_say_is_not_enqueued(space: ProductSpace) -> None:
    other = SearchChoices(CHOICES.shape, 16, (16,), ("none",))
    with pytest.raises(ValueError, match="micro_batch_size is 16 of global_batch_size 16"):
        open_study(space).enqueue(plain_policies(other)[0])


def test_optuna_sees_out_of_memory_as_finished_with_a_positive_constraint(space: ProductSpace) -> None:
    storage = optuna.storages.InMemoryStorage()
    study = open_policy_study("study", space=space, sampler=make_sampler("tpe", space, seed=0), storage=storage)
    for status in (TrialStatus.COMPLETED, TrialStatus.OUT_OF_MEMORY, TrialStatus.FAILED):
        spec = spec_of(study.ask())
        result = measure(spec) if status is TrialStatus.COMPLETED else failed_trial(spec, status, "said so")
        assert study.tell(result, OBJECTIVE.score(result))
    completed, out_of_memory, failed = optuna.load_study(study_name="study", storage=storage).trials
    assert completed.state is out_of_memory.state is optuna.trial.TrialState.COMPLETE
    assert list(completed.constraints) == list(out_of_memory.constraints) == ["memory", "proof"]
    assert out_of_memory.constraints["memory"] > 0
    assert failed.state is optuna.trial.TrialState.FAIL


def test_results_come_back_whole_from_the_storage(space: ProductSpace, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = open_study(space, storage)
    result = measure(spec_of(study.ask()))
    study.tell(result, OBJECTIVE.score(result))
    interrupted = study.ask()
    resumed = open_study(space, storage)
    resumed.close_interrupted(OBJECTIVE.score)
    first, second = resumed.results()
    assert first == result
    assert (second.trial_number, second.policy) == (interrupted.trial_number, interrupted.policy)
    assert second.status is TrialStatus.CANCELLED
    assert second.reason == "interrupted: the process that ran the study ended first"


def test_a_result_stored_before_the_driver_died_is_kept_and_learned_from(space: ProductSpace) -> None:
    storage = optuna.storages.InMemoryStorage()
    sampler = make_sampler("tpe", space, seed=0)
    dying = open_policy_study("study", space=space, sampler=sampler, storage=storage)
    result = measure(spec_of(dying.ask()))
    optuna_study = optuna.load_study(study_name="study", storage=storage)
    storage.set_trial_user_attr(
        optuna_study.trials[0]._trial_id, "result", result.model_dump(mode="json", exclude={"policy"})
    )
    resumed = open_policy_study("study", space=space, sampler=make_sampler("tpe", space, seed=0), storage=storage)
    assert resumed.close_interrupted(OBJECTIVE.score) == []
    assert resumed.results() == [result]
    assert optuna_study.trials[0].state is optuna.trial.TrialState.COMPLETE


def test_attributes_and_the_studys_own_id_survive(space: ProductSpace, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = open_study(space, storage)
    assert study.attribute("goal") is None
    assert study.unique_id() is None
    study.set_attribute("goal", {"memory_cap": "600MiB"})
    study.set_unique_id("id-1")
    resumed = open_study(space, storage)
    assert resumed.attribute("goal") == {"memory_cap": "600MiB"}
    assert resumed.unique_id() == "id-1"
