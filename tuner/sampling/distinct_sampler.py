"""An Optuna sampler that never proposes a policy twice, whichever sampler it draws from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from optuna.samplers import BaseGASampler, BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces.base import SearchSpace
from search_spaces.parameters import Choice, Integer, Parameter, ParameterValue
from tuner.sampling.policy_sampler import PolicySampler, SpaceExhausted
from tuner.sampling.taken_policies import UntriedPolicies

#: From a seed, the sampler to draw one trial from.
SamplerFactory = Callable[[int], BaseSampler]


class DistinctSampler(PolicySampler):
    """Draws whole points from another sampler until one decodes to a policy that the study has not taken.

    Several points can stand for one policy, and samplers like to come back to a good one, so after a few draws it takes
    the untried policy nearest to the last draw, and where none is near, the next of the space's own order. Without a
    sampler to draw from it walks that order, which is an exhaustive search.

    Each trial has a sampler of its own, seeded by the study's seed and the trial's number: a study that was interrupted
    goes on as if it had not been. What samplers learn from, they read from the study.
    """

    def __init__(self, space: SearchSpace, draw_from: SamplerFactory | None, *, seed: int, num_draws: int = 8) -> None:
        """Stores its parts.

        Args:
            space: What the study searches; the study must hold trials of this space only.
            draw_from: None walks the space in its order.
            seed: Of the study.
            num_draws: Before the nearest untried policy is taken; 1 for samplers whose draws are dear or always alike.
        """
        super().__init__(space, seed=seed)
        self._draw_from = draw_from
        self._num_draws = num_draws
        self._untried = UntriedPolicies(space, self._taken)

    def raise_if_exhausted(self, trials: Sequence[FrozenTrial]) -> None:
        self._taken.update(trials)
        if self._untried.first() is None:
            raise SpaceExhausted("space exhausted: every policy was tried or is in flight")

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        sampler = self._sampler_of(trial)
        if isinstance(sampler, BaseGASampler):
            # Genetic samplers take a trial into a generation when they sample it, so enqueued ones would never breed.
            sampler.get_trial_generation(study, trial)

    def _sampler_of(self, trial: FrozenTrial) -> BaseSampler | None:
        return None if self._draw_from is None else self._draw_from(self._seed_of(trial.number))

    def _untried_point(self, study: Study, trial: FrozenTrial) -> dict[str, ParameterValue]:
        self.raise_if_exhausted(study.get_trials(deepcopy=False))
        sampler = self._sampler_of(trial)
        if sampler is not None:
            drawn: dict[str, ParameterValue] = {}
            for _ in range(self._num_draws):
                drawn = self._draw(sampler, study, trial)
                if self._space.decode(drawn) not in self._taken:
                    return drawn
            for neighbour in _neighbours(drawn, self._space.parameters()):
                if self._space.decode(neighbour) not in self._taken:
                    return neighbour
        policy = self._untried.first()
        assert policy is not None, "raise_if_exhausted has found one"
        return self._space.encode(policy)

    def _draw(self, sampler: BaseSampler, study: Study, trial: FrozenTrial) -> dict[str, ParameterValue]:
        """One value for every parameter of the space."""
        joint = sampler.sample_relative(study, trial, self._distributions) if self._distributions else {}
        values: dict[str, ParameterValue] = {}
        for parameter in self._space.parameters():
            distribution = self._distributions.get(parameter.name)
            if distribution is None:
                values[parameter.name] = _only_value(parameter)
            elif parameter.name in joint:
                values[parameter.name] = joint[parameter.name]
            else:
                values[parameter.name] = sampler.sample_independent(study, trial, parameter.name, distribution)
        return values


def _neighbours(
    values: dict[str, ParameterValue], parameters: Sequence[Parameter]
) -> Iterator[dict[str, ParameterValue]]:
    """Points that differ from this one in one parameter, small steps of whole numbers first."""
    integers = [p for p in parameters if isinstance(p, Integer)]
    for step in range(1, max((p.high - p.low for p in integers), default=0) + 1):
        for parameter in integers:
            for value in (int(values[parameter.name]) - step, int(values[parameter.name]) + step):
                if parameter.low <= value <= parameter.high:
                    yield {**values, parameter.name: value}
    for choice in [p for p in parameters if isinstance(p, Choice)]:
        for other in choice.choices:
            if other != values[choice.name]:
                yield {**values, choice.name: other}


def _only_value(parameter: Parameter) -> ParameterValue:
    return parameter.low if isinstance(parameter, Integer) else parameter.choices[0]
