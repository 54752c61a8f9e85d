"""A search space over a list of placements, for searches that may not combine actions freely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from search_spaces.batch_axes import BatchAxes
from search_spaces.choices import Placements, SearchChoices
from search_spaces.parameters import Integer, Parameter, ParameterValue
from search_spaces.policy import NONE, RecomputePolicy
from search_spaces.uniform import uniform_placements
from search_spaces.yaml_words import one_line

PLACEMENT = "placement"


class ListedSpace:
    """Every combination of micro-batch, RNG handling and one of the allowed placements; a :class:`SearchSpace`.

    A placement is named by its position in the list, which begins with those that recompute least: an optimizer can
    make something of that order.
    """

    def __init__(self, choices: SearchChoices) -> None:
        """Stores choices with ``allowed`` placements."""
        assert choices.allowed, "a space of listed placements needs a list"
        self._choices = choices
        self._axes = BatchAxes(choices)
        self._listed = choices.allowed
        self._index = {placements: index for index, placements in enumerate(self._listed)}

    def parameters(self) -> tuple[Parameter, ...]:
        parameters = self._axes.parameters()
        if len(self._listed) > 1:
            parameters.append(Integer(PLACEMENT, 0, len(self._listed) - 1))
        return tuple(parameters)

    def decode(self, values: Mapping[str, ParameterValue]) -> RecomputePolicy:
        return self._axes.decode(values, self._listed[int(values.get(PLACEMENT, 0))])

    def encode(self, policy: RecomputePolicy) -> dict[str, ParameterValue]:
        values = self._axes.encode(policy)
        index = self._index.get(self._in_order(policy))
        if index is None:
            raise ValueError(
                f"placement {policy.summary()} is none of the {len(self._listed)} placements that this search tries"
            )
        return values if len(self._listed) == 1 else {**values, PLACEMENT: index}

    def policies(self) -> Iterator[RecomputePolicy]:
        """Every distinct policy once: first one action on all blocks, then the others, least recompute first."""
        uniform = dict.fromkeys(uniform_placements(self._choices).values())
        for placements in (*uniform, *(listed for listed in self._listed if listed not in uniform)):
            yield from self._axes.policies(placements)

    def count_up_to(self, limit: int) -> int:
        """The number of distinct policies, or ``limit`` where there are more."""
        num_plain = sum(not any(of_list.regions for of_list in listed) for listed in self._listed)
        num_recomputing = len(self._listed) - num_plain
        per_batch = num_plain * len(self._choices.budget_choices) + num_recomputing * len(self._choices.rng_choices)
        return min(limit, per_batch * len(self._choices.batches))

    def _in_order(self, policy: RecomputePolicy) -> Placements:
        """The policy's placements in the order of the model's lists; those it does not place are plain ones."""
        by_path = {placement.blocks: placement.canonical() for placement in policy.placement}
        plain = {
            of_list.blocks.path: of_list.place([NONE] * of_list.num_modules) for of_list in self._choices.block_lists
        }
        unknown = sorted(by_path.keys() - plain.keys())
        if unknown:
            expected = ", ".join(plain) or "nothing"
            raise ValueError(f"placement: {one_line(unknown[0])} is no list of this model; place exactly {expected}")
        return tuple(by_path.get(path, of_list) for path, of_list in plain.items())
