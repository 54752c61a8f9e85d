"""Search parameters as Optuna's distributions."""

from __future__ import annotations

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from search_spaces.base import SearchSpace
from search_spaces.parameters import Integer, Parameter


def to_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """One distribution per parameter, by name, in the space's order."""
    return {parameter.name: _distribution(parameter) for parameter in space.parameters()}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, Integer):
        return IntDistribution(parameter.low, parameter.high)
    return CategoricalDistribution(parameter.choices)
