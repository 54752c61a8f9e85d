from __future__ import annotations

from collections.abc import Mapping

import optuna
import pytest
from optuna.trial import TrialState

from runners.trial import TrialStatus
from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.parameters import ParameterValue
from search_spaces.policy import RecomputePolicy
from search_spaces.product_space import ProductSpace
from search_spaces.two_action import two_action_space
from tuner.sampling.distributions import to_distributions
from tuner.sampling.taken_policies import TakenPolicies, UntriedPolicies
from tuner.sampling.trial_records import RESULT_ATTRIBUTE

optuna.logging.set_verbosity(optuna.logging.WARNING)


class CountingSpace:
    """A search space that counts how often it decodes."""

    def __init__(self, space: ProductSpace) -> None:
        self._space = space
        self.parameters = space.parameters
        self.encode = space.encode
        self.policies = space.policies
        self.num_decoded = 0

    def decode(self, values: Mapping[str, ParameterValue]) -> RecomputePolicy:
        self.num_decoded += 1
        return self._space.decode(values)


@pytest.fixture
def space() -> CountingSpace:
    shape = ModelShape(1, (BlockList("h", "Block", 2),))
    return CountingSpace(two_action_space(SearchChoices(shape, 4, (1, 2, 4), ("none", "block"))))


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(directions=("maximize", "minimize"))


def start(study: optuna.Study, space: CountingSpace, policy: RecomputePolicy) -> optuna.Trial:
    study.enqueue_trial(dict(space.encode(policy)))
    return study.ask(to_distributions(space))


def finish(study: optuna.Study, trial: optuna.Trial, status: TrialStatus | None) -> None:
    if status is not None:
        trial.set_user_attr(RESULT_ATTRIBUTE, {"status": status.value})
    if status in (TrialStatus.COMPLETED, TrialStatus.OUT_OF_MEMORY):
        study.tell(trial, [1.0, 1.0])
    else:
        study.tell(trial, state=TrialState.FAIL)


def taken(study: optuna.Study, space: CountingSpace) -> TakenPolicies:
    policies = TakenPolicies(space)
    policies.update(study.get_trials(deepcopy=False))
    return policies


def test_waiting_and_running_trials_take_their_policies(study: optuna.Study, space: CountingSpace) -> None:
    running, waiting, free = list(space.policies())[:3]
    start(study, space, running)
    study.enqueue_trial(dict(space.encode(waiting)))
    policies = taken(study, space)
    assert running in policies
    assert waiting in policies
    assert free not in policies


@pytest.mark.parametrize("status", [*TrialStatus, None], ids=str)
def test_only_trials_that_say_nothing_give_their_policy_back(
    study: optuna.Study, space: CountingSpace, status: TrialStatus | None
) -> None:
    policy = next(space.policies())
    finish(study, start(study, space, policy), status)
    policies = taken(study, space)
    gives_back = status in (TrialStatus.CANCELLED, TrialStatus.NODE_LOST, None)
    assert (policy not in policies) == gives_back
    assert policies.freed() == ([policy] if gives_back else [])


def test_a_policy_that_loses_its_node_twice_is_not_tried_again(study: optuna.Study, space: CountingSpace) -> None:
    policy = next(space.policies())
    policies = TakenPolicies(space)
    for expected in (False, True):
        finish(study, start(study, space, policy), TrialStatus.NODE_LOST)
        policies.update(study.get_trials(deepcopy=False))
        assert (policy in policies) == expected


def test_a_policy_given_back_and_tried_again_is_taken(study: optuna.Study, space: CountingSpace) -> None:
    policy = next(space.policies())
    finish(study, start(study, space, policy), TrialStatus.CANCELLED)
    again = start(study, space, policy)
    policies = TakenPolicies(space)
    policies.update(study.get_trials(deepcopy=False))
    assert policy in policies
    assert policies.freed() == []
    finish(study, again, TrialStatus.FAILED)
    policies.update(study.get_trials(deepcopy=False))
    assert policy in policies


def test_trials_that_finish_out_of_order_are_each_decoded_once(study: optuna.Study, space: CountingSpace) -> None:
    trials = [start(study, space, policy) for policy in list(space.policies())[:6]]
    policies = taken(study, space)
    space.num_decoded = 0
    for trial in reversed(trials):
        finish(study, trial, TrialStatus.COMPLETED)
        policies.update(study.get_trials(deepcopy=False))
    assert space.num_decoded == 0
    assert sum(policy in policies for policy in space.policies()) == 6


def test_a_trial_whose_driver_died_before_it_had_a_policy_takes_none(study: optuna.Study, space: CountingSpace) -> None:
    study.ask()
    assert not any(policy in taken(study, space) for policy in space.policies())


def test_untried_policies_come_in_the_spaces_order_after_those_given_back(
    study: optuna.Study, space: CountingSpace
) -> None:
    first, second, third, *_ = space.policies()
    policies = TakenPolicies(space)
    untried = UntriedPolicies(space, policies)
    trials = [start(study, space, policy) for policy in (first, second)]
    policies.update(study.get_trials(deepcopy=False))
    assert untried.first() == third
    finish(study, trials[1], TrialStatus.CANCELLED)
    policies.update(study.get_trials(deepcopy=False))
    assert untried.first() == second
    start(study, space, second)
    policies.update(study.get_trials(deepcopy=False))
    assert untried.first() == third


def test_nothing_is_untried_once_all_are_taken(study: optuna.Study, space: CountingSpace) -> None:
    policies = TakenPolicies(space)
    untried = UntriedPolicies(space, policies)
    for policy in space.policies():
        start(study, space, policy)
    policies.update(study.get_trials(deepcopy=False))
    assert untried.first() is None
