from __future__ import annotations

from optuna.distributions import CategoricalDistribution, IntDistribution

from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.two_action import two_action_space
from tuner.sampling.distributions import to_distributions


def test_each_parameter_has_its_distribution_in_the_spaces_order() -> None:
    shape = ModelShape(1, (BlockList("h", "Block", 6),))
    space = two_action_space(SearchChoices(shape, 4, (4, 1), ("none", "block", "segment"), (2, 3)))
    actions = CategoricalDistribution(("none", "block", "segment"))
    assert list(to_distributions(space).items()) == [
        ("micro_batch_size", CategoricalDistribution((1, 4))),
        ("h/first_action", actions),
        ("h/second_action", actions),
        ("h/num_first", IntDistribution(1, 6)),
        ("h/segment_size", CategoricalDistribution((2, 3))),
    ]
