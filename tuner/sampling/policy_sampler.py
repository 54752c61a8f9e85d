"""What every sampler of policies shares: the study's policies, and how Optuna is given whole points of a space."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces.base import SearchSpace
from search_spaces.parameters import ParameterValue
from search_spaces.policy import RecomputePolicy
from tuner.sampling.distributions import to_distributions
from tuner.sampling.taken_policies import TakenPolicies


class SpaceExhausted(Exception):  # noqa: N818 - the end of a search, not an error
    """Every policy of the space was tried or is in flight."""


class NoGainExpected(Exception):  # noqa: N818 - the end of a search, not an error
    """No policy is worth another trial, as far as what was measured by now says; the message gives the figures."""


class PolicySampler(BaseSampler):
    """An Optuna sampler as a study of policies needs it: it proposes whole points, and no policy that is taken.

    Args:
        space: What the study searches; the study must hold trials of this space only.
        seed: Of the study.
    """

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._taken = TakenPolicies(space)
        # A parameter with one value is not sampled: Optuna fills it in itself.
        self._distributions = {name: d for name, d in to_distributions(space).items() if not d.single()}

    @abc.abstractmethod
    def raise_if_exhausted(self, trials: Sequence[FrozenTrial]) -> None:
        """To be called before a trial is asked for, since Optuna creates the trial before it samples.

        Args:
            trials: All of the study, in order of number.

        Raises:
            SpaceExhausted: No policy is left to propose.
            NoGainExpected: None of those left is worth a trial.
        """

    @abc.abstractmethod
    def _untried_point(self, study: Study, trial: FrozenTrial) -> Mapping[str, ParameterValue]:
        """A value for every parameter of the space: a policy that is not taken.

        Raises:
            SpaceExhausted: As `raise_if_exhausted`; by plain Optuna a trial may be asked for without that question.
            NoGainExpected: As there.
        """

    def is_taken(self, policy: RecomputePolicy, trials: Sequence[FrozenTrial]) -> bool:
        """True where one of the study's trials has tried the policy, is trying it, or is enqueued to."""
        self._taken.update(trials)
        return policy.canonical() in self._taken

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        point = self._untried_point(study, trial)
        return {name: value for name, value in point.items() if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"parameter {param_name} is none of this study's; ask for all parameters of the space at once")

    def _seed_of(self, trial_number: int) -> int:
        """A seed for one trial that neighbouring trials and neighbouring studies' seeds do not share."""
        digest = hashlib.sha256(f"{self._seed}/{trial_number}".encode()).digest()
        return int.from_bytes(digest[:4], "big")
