"""What every sampler must hold, tried on each one that the registry knows, with Optuna's own storages."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages import BaseStorage, InMemoryStorage

from runners.trial import TrialResult, TrialStatus, Verdict, Verification
from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import RecomputePolicy
from search_spaces.product_space import ProductSpace
from search_spaces.registry import make_space
from tuner.objective import Objective
from tuner.sampling.policy_sampler import SpaceExhausted
from tuner.sampling.policy_study import PolicyStudy, Proposal, open_policy_study
from tuner.sampling.registry import MODEL_GUIDED, SAMPLERS, make_sampler

optuna.logging.set_verbosity(optuna.logging.WARNING)

CAP_BYTES = 500
OBJECTIVE = Objective(CAP_BYTES)


def twelve_points() -> ProductSpace:
    """Four placements of two blocks at three micro-batches."""
    shape = ModelShape(1, (BlockList("h", "Block", 2),))
    return make_space("two_action", SearchChoices(shape, 4, (1, 2, 4), ("none", "block")))


def six_points() -> ProductSpace:
    """One block at three micro-batches; fewer than the random points that every sampler begins with."""
    shape = ModelShape(1, (BlockList("h", "Block", 1),))
    return make_space("two_action", SearchChoices(shape, 4, (1, 2, 4), ("none", "block")))


#: What recompute of a block saves of its memory and adds to its time.
SAVED = {"attention": 0.2, "mlp": 0.4, "block": 0.9}
SLOWER = {"attention": 0.1, "mlp": 0.1, "block": 0.3}


def measure(proposal: Proposal) -> TrialResult:
    """Costs that add up over blocks: memory by micro-batch and what is kept, time by recompute and micro-batches."""
    policy = proposal.policy
    regions = [region for placement in policy.placement for region in placement.regions]
    num_blocks = sum(placement.num_blocks for placement in policy.placement) or 1
    kept = 1 - sum(SAVED[region.action] * region.num_blocks for region in regions) / num_blocks
    slower = sum(SLOWER[region.action] * region.num_blocks for region in regions) / num_blocks
    step_time_s = 1 + slower + 0.1 * policy.batch.gradient_accumulation_steps
    return TrialResult(
        trial_number=proposal.trial_number,
        policy=policy,
        status=TrialStatus.COMPLETED,
        samples_per_second=1 / step_time_s,
        relative_speed=1 / step_time_s,
        peak_memory_bytes=int(100 + 200 * policy.batch.micro_batch_size * kept),
        verification=Verification(verdict=Verdict.MATCH),
    )


def tell(study: PolicyStudy, proposal: Proposal, status: TrialStatus = TrialStatus.COMPLETED) -> None:
    result = measure(proposal)
    if status is not TrialStatus.COMPLETED:
        result = TrialResult(trial_number=proposal.trial_number, policy=proposal.policy, status=status)
    assert study.tell(result, OBJECTIVE.score(result))


def open_study(
    name: str, space: ProductSpace, *, seed: int = 0, storage: BaseStorage | str | None = None
) -> PolicyStudy:
    return open_policy_study("study", space=space, sampler=make_sampler(name, space, seed=seed), storage=storage)


def run(study: PolicyStudy, num_trials: int) -> list[RecomputePolicy]:
    tried = []
    for _ in range(num_trials):
        proposal = study.ask()
        tell(study, proposal)
        tried.append(proposal.policy)
    return tried


#: Samplers that go on as long as there is an untried policy; `model_guided` stops when nothing more is to be gained.
EXHAUSTING = [name for name in SAMPLERS if name != MODEL_GUIDED]


@pytest.mark.parametrize("name", EXHAUSTING)
class TestEverySampler:
    def test_a_space_of_twelve_points_is_exhausted_at_twelve(self, name: str) -> None:
        study = open_study(name, twelve_points())
        assert len(set(run(study, 12))) == 12
        with pytest.raises(SpaceExhausted, match="space exhausted: every policy was tried or is in flight"):
            study.ask()
        assert study.num_counted_trials() == 12

    def test_trials_in_flight_count_as_taken_and_may_be_told_in_any_order(self, name: str) -> None:
        study = open_study(name, six_points())
        in_flight = [study.ask() for _ in range(3)]
        finished = []
        for _ in range(3):
            proposal = in_flight.pop()
            tell(study, proposal)
            finished.append(proposal.policy)
            in_flight.insert(0, study.ask())
        with pytest.raises(SpaceExhausted, match="in flight"):
            study.ask()
        assert len({*finished, *(proposal.policy for proposal in in_flight)}) == 6

    def test_the_same_seed_gives_the_same_trials(self, name: str) -> None:
        first, second = (run(open_study(name, six_points(), seed=7), 6) for _ in range(2))
        assert first == second

    def test_failed_and_timed_out_trials_are_neither_repeated_nor_fatal(self, name: str) -> None:
        study = open_study(name, six_points())
        tried = set()
        for number in range(6):
            proposal = study.ask()
            tried.add(proposal.policy)
            tell(study, proposal, TrialStatus.FAILED if number % 2 else TrialStatus.TIMED_OUT)
        assert len(tried) == 6

    def test_what_did_not_fit_is_not_tried_again(self, name: str) -> None:
        study = open_study(name, six_points())
        tried = set()
        for _ in range(6):
            proposal = study.ask()
            tried.add(proposal.policy)
            over = (measure(proposal).peak_memory_bytes or 0) > CAP_BYTES
            tell(study, proposal, TrialStatus.OUT_OF_MEMORY if over else TrialStatus.COMPLETED)
        assert len(tried) == 6

    def test_a_cancelled_policy_comes_back(self, name: str) -> None:
        study = open_study(name, six_points())
        cancelled = study.ask()
        tell(study, cancelled, TrialStatus.CANCELLED)
        assert cancelled.policy in run(study, 6)
        assert study.num_counted_trials() == 6

    def test_enqueued_policies_come_first_and_once(self, name: str) -> None:
        space = six_points()
        study = open_study(name, space)
        plain = list(space.policies())[2:5]
        assert [study.enqueue(policy) for policy in [*plain, plain[0]]] == [True, True, True, False]
        assert run(study, 3) == plain
        assert not study.enqueue(plain[1])
        assert len({*plain, *run(study, 3)}) == 6

    def test_a_resumed_study_goes_on_as_if_it_had_not_stopped(self, name: str) -> None:
        whole = run(open_study(name, twelve_points(), seed=3), 11)
        storage = InMemoryStorage()
        before = run(open_study(name, twelve_points(), seed=3, storage=storage), 5)
        after = run(open_study(name, twelve_points(), seed=3, storage=storage), 6)
        assert before + after == whole

    def test_a_killed_driver_leaves_nothing_taken(self, name: str) -> None:
        storage = InMemoryStorage()
        killed = open_study(name, six_points(), storage=storage)
        finished = run(killed, 2)
        interrupted = killed.ask()
        study = open_study(name, six_points(), storage=storage)
        assert study.close_interrupted(OBJECTIVE.score) == [interrupted]
        assert study.close_interrupted(OBJECTIVE.score) == []
        assert len({*finished, *run(study, 4)}) == 6
        with pytest.raises(SpaceExhausted, match="every policy was tried"):
            study.ask()

    def test_a_space_of_one_point_has_one_trial(self, name: str) -> None:
        space = make_space("two_action", SearchChoices(ModelShape(1), 4, (4,), ("none",)))
        study = open_study(name, space)
        run(study, 1)
        with pytest.raises(SpaceExhausted, match="every policy was tried"):
            study.ask()
        assert study.num_counted_trials() == 1


@pytest.mark.parametrize(("name", "factor"), [("tpe", 1.5), ("nsga2", 1.2)])
def test_samplers_that_learn_find_feasible_points_more_often_than_random(name: str, factor: float) -> None:
    assert num_feasible(name) > factor * num_feasible("random")


def num_feasible(name: str) -> int:
    """Feasible ones among 40 trials each of three seeds, under a cap that one in thirteen of 2224 policies keeps."""
    objective = Objective(memory_cap_bytes=180)
    count = 0
    for seed in range(3):
        shape = ModelShape(1, (BlockList("h", "Block", 47, (("mlp", "mlp"), ("attention", "attn"))),))
        actions = ("none", "mlp", "attention", "block")
        space = make_space("two_action", SearchChoices(shape, 8, (1, 2, 4, 8), actions))
        study = open_study(name, space, seed=seed)
        for _ in range(40):
            proposal = study.ask()
            result = measure(proposal)
            score = objective.score(result)
            count += score.feasible
            study.tell(result, score)
    return count


def test_a_study_resumed_from_sqlite_repeats_nothing(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'study.db'}"
    before = run(open_study("tpe", twelve_points(), storage=database), 6)
    after = run(open_study("tpe", twelve_points(), storage=database), 6)
    assert len({*before, *after}) == 12


def test_an_unknown_sampler_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="sampler 'cmaes' is unknown; known are model_guided, tpe, gp, nsga2"):
        make_sampler("cmaes", twelve_points(), seed=0)
