"""A search space made of a micro-batch, the handling of RNG state, and one encoding per list of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from search_spaces.batch_axes import BatchAxes
from search_spaces.choices import SearchChoices
from search_spaces.parameters import Parameter, ParameterValue
from search_spaces.policy import BlockListPlacement, RecomputePolicy
from search_spaces.uniform import uniform_placements
from search_spaces.yaml_words import one_line


class BlockListEncoding(Protocol):
    """An encoding of the placements of one list of blocks; the names of its parameters begin with the list's path."""

    def parameters(self) -> tuple[Parameter, ...]:
        """The list's parameters, always the same ones in the same order."""

    def decode(self, values: Mapping[str, ParameterValue]) -> BlockListPlacement:
        """The canonical placement that the values stand for; values of other parameters are ignored."""

    def encode(self, placement: BlockListPlacement) -> dict[str, ParameterValue]:
        """Values that decode to the placement.

        Raises:
            ValueError: This encoding cannot say the placement; the message names the list and the first such block.
        """

    def num_levels(self) -> int:
        """Levels of detail, at least 1: uniform placements are level 0, then halves, quarters and so on."""

    def placements(self, level: int) -> Iterator[BlockListPlacement]:
        """The placements that this level adds, in a fixed order; each placement is in exactly one level."""

    def count_up_to(self, limit: int) -> int:
        """The number of placements over all levels, or ``limit`` where there are more."""


class ProductSpace:
    """Every combination of micro-batch, RNG handling and a placement per list; a :class:`SearchSpace`."""

    def __init__(self, choices: SearchChoices, encodings: Sequence[BlockListEncoding]) -> None:
        """Stores one encoding per list of ``choices``, in the same order."""
        self._choices = choices
        self._axes = BatchAxes(choices)
        self._encodings = tuple(encodings)

    def parameters(self) -> tuple[Parameter, ...]:
        parameters = self._axes.parameters()
        for encoding in self._encodings:
            parameters.extend(encoding.parameters())
        return tuple(parameters)

    def decode(self, values: Mapping[str, ParameterValue]) -> RecomputePolicy:
        return self._axes.decode(values, tuple(encoding.decode(values) for encoding in self._encodings))

    def encode(self, policy: RecomputePolicy) -> dict[str, ParameterValue]:
        values = self._axes.encode(policy)
        for encoding, placement in zip(self._encodings, self._placement_per_list(policy), strict=True):
            values.update(encoding.encode(placement))
        return values

    def policies(self) -> Iterator[RecomputePolicy]:
        """Every distinct policy once, coarse ones first, so that a search which ends early has seen the outline.

        First one action on all blocks of all lists, at every micro-batch; then lists that differ, and lists divided
        into halves, quarters and so on. Lazy: the product over several lists can be astronomically large.
        """
        uniform = dict.fromkeys(uniform_placements(self._choices).values())
        for placement in uniform:
            yield from self._axes.policies(placement)
        for placement in self._placements():
            if placement not in uniform:
                yield from self._axes.policies(placement)

    def count_up_to(self, limit: int) -> int:
        """The number of distinct policies, or ``limit`` where there are more; cheap however large the space."""
        num_placements = 1
        for encoding in self._encodings:
            num_placements *= encoding.count_up_to(limit)
        # The placement without any recompute has one way to handle RNG state and all budgets, the others vice versa.
        per_batch = len(self._choices.budget_choices) + (num_placements - 1) * len(self._choices.rng_choices)
        return min(limit, per_batch * len(self._choices.batches))

    def _placements(self) -> Iterator[tuple[BlockListPlacement, ...]]:
        """Every combination of placements, the sum of their levels ascending."""
        highest = [encoding.num_levels() - 1 for encoding in self._encodings]
        for total in range(sum(highest) + 1):
            for levels in _divisions(total, highest):
                yield from _combinations(self._encodings, levels)

    def _placement_per_list(self, policy: RecomputePolicy) -> list[BlockListPlacement]:
        by_path = {placement.blocks: placement for placement in policy.placement}
        paths = [blocks.path for blocks in self._choices.shape.block_lists]
        differing = sorted(by_path.keys() ^ set(paths))
        if differing:
            what = "which the model has, is not placed" if differing[0] in paths else "is no list of this model"
            raise ValueError(
                f"placement: {one_line(differing[0])} {what}; place exactly {', '.join(paths) or 'nothing'}"
            )
        return [by_path[path] for path in paths]


def _divisions(total: int, highest: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to divide ``total`` over the lists, none above its highest level."""
    if not highest:
        if total == 0:
            yield ()
        return
    for here in range(min(total, highest[0]), -1, -1):
        for rest in _divisions(total - here, highest[1:]):
            yield (here, *rest)


def _combinations(
    encodings: Sequence[BlockListEncoding], levels: Sequence[int]
) -> Iterator[tuple[BlockListPlacement, ...]]:
    # Not itertools.product, which would hold all placements of every list in memory.
    if not encodings:
        yield ()
        return
    for first in encodings[0].placements(levels[0]):
        for rest in _combinations(encodings[1:], levels[1:]):
            yield (first, *rest)
