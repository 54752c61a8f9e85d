from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.product_space import ProductSpace
from search_spaces.two_action import two_action_space
from tuner.sampling.distinct_sampler import DistinctSampler
from tuner.sampling.distributions import to_distributions

optuna.logging.set_verbosity(optuna.logging.WARNING)

FAVOURITE = {"micro_batch_size": 2, "h/first_action": "block", "h/second_action": "none", "h/num_first": 6}


class FixedSampler(BaseSampler):
    """Always draws the same point, and counts how often."""

    def __init__(self) -> None:
        self.num_draws = 0

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self.num_draws += 1
        return {name: FAVOURITE[name] for name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NotImplementedError


@pytest.fixture
def space() -> ProductSpace:
    shape = ModelShape(1, (BlockList("h", "Block", 12),))
    return two_action_space(SearchChoices(shape, 4, (2, 4), ("none", "block")))


def proposals(space: ProductSpace, sampler: DistinctSampler, num_trials: int) -> list[str]:
    study = optuna.create_study(sampler=sampler, directions=("maximize", "minimize"))
    asked = [study.ask(to_distributions(space)) for _ in range(num_trials)]
    return [space.decode(trial.params).summary() for trial in asked]


def test_the_nearest_untried_policies_follow_a_favourite(space: ProductSpace) -> None:
    fixed = FixedSampler()
    sampler = DistinctSampler(space, lambda seed: fixed, seed=0, num_draws=3)
    assert proposals(space, sampler, 5) == [
        "block[0-5] @2x2",
        "block[0-4] @2x2",
        "block[0-6] @2x2",
        "block[0-3] @2x2",
        "block[0-7] @2x2",
    ]
    assert fixed.num_draws == 1 + 4 * 3


def test_once_all_around_is_tried_the_spaces_own_order_goes_on(space: ProductSpace) -> None:
    sampler = DistinctSampler(space, lambda seed: FixedSampler(), seed=0)
    tried = proposals(space, sampler, 48)
    assert len(set(tried)) == 48 == space.count_up_to(100)
    order = [policy.summary() for policy in space.policies()]
    assert tried[-20:] == [summary for summary in order if summary in tried[-20:]]


def test_without_a_sampler_the_spaces_order_is_walked(space: ProductSpace) -> None:
    sampler = DistinctSampler(space, None, seed=0)
    assert proposals(space, sampler, 6) == [policy.summary() for policy in list(space.policies())[:6]]


def test_each_trial_draws_from_a_sampler_seeded_by_study_and_number(space: ProductSpace) -> None:
    def seeds(study_seed: int) -> list[int]:
        used: list[int] = []

        def factory(seed: int) -> BaseSampler:
            used.append(seed)
            return FixedSampler()

        proposals(space, DistinctSampler(space, factory, seed=study_seed), 4)
        return list(dict.fromkeys(used))

    assert seeds(0) == seeds(0)
    assert len({*seeds(0), *seeds(1)}) == 8


def test_a_parameter_that_the_space_does_not_know_is_refused(space: ProductSpace) -> None:
    study = optuna.create_study(sampler=DistinctSampler(space, None, seed=0), directions=("maximize", "minimize"))
    with pytest.raises(ValueError, match="parameter learning_rate is none of this study's"):
        study.ask().suggest_float("learning_rate", 0, 1)
