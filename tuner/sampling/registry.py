"""Samplers by the name in search.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from optuna.samplers import GPSampler, NSGAIISampler, RandomSampler, TPESampler

from search_spaces.base import SearchSpace
from tuner.prediction.next_policy import PolicyProposer
from tuner.sampling.distinct_sampler import DistinctSampler, SamplerFactory
from tuner.sampling.model_guided import ModelGuidedSampler
from tuner.sampling.policy_sampler import PolicySampler
from tuner.sampling.tried_policies import TriedPolicies

MODEL_GUIDED = "model_guided"
#: What takes its place for a model that nothing can be predicted of.
FALLBACK = "tpe"


@dataclass(frozen=True)
class _Family:
    """A kind of sampler: how to make one, None for the walk through the space, and how often it is worth asking."""

    draw_from: SamplerFactory | None
    num_draws: int


_FAMILIES: dict[str, _Family] = {
    # Jointly over all parameters: which action pays depends on how many blocks take it and on the micro-batch.
    "tpe": _Family(lambda seed: TPESampler(seed=seed, multivariate=True), num_draws=4),
    # A draw fits its models anew and takes some seconds, and the next draw is nearly the same point.
    "gp": _Family(lambda seed: GPSampler(seed=seed, warn_independent_sampling=False), num_draws=1),
    # Optuna's population of 50 would breed for the first time after 50 trials; searches have some tens.
    "nsga2": _Family(lambda seed: NSGAIISampler(seed=seed, population_size=10), num_draws=8),
    "random": _Family(lambda seed: RandomSampler(seed=seed), num_draws=64),
    "grid": _Family(None, num_draws=0),
}

#: Names of all samplers, the default first.
SAMPLERS = (MODEL_GUIDED, *_FAMILIES)


@dataclass(frozen=True)
class Guide:
    """What the model-guided sampler needs of the model, and the others do not."""

    proposer: PolicyProposer
    tried: TriedPolicies


def make_sampler(name: str, space: SearchSpace, *, seed: int, guide: Guide | None = None) -> PolicySampler:
    """The named sampler over a space; the same seed proposes the same policies for the same results.

    Args:
        guide: For `model_guided` only, which does not work without.

    Raises:
        ValueError: No sampler has this name; the message lists those that exist.
    """
    if name == MODEL_GUIDED:
        if guide is None:
            raise ValueError(f"sampler {name} needs predictions, and this model has no dry run to make them from")
        return ModelGuidedSampler(space, guide.proposer, guide.tried, seed=seed)
    if name not in _FAMILIES:
        raise ValueError(f"sampler {name!r} is unknown; known are {', '.join(SAMPLERS)}")
    family = _FAMILIES[name]
    return DistinctSampler(space, family.draw_from, seed=seed, num_draws=family.num_draws)
