"""The small encoding: per list two actions, where the first n blocks take the first one and the rest the second.

With costs that add up over alike blocks and one limit on memory, the best placement mixes at most two actions per kind
of block, so little is lost against a choice per block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.parameters import Choice, Integer, Parameter, ParameterValue
from search_spaces.policy import BLOCK, NONE, SEGMENT, BlockListPlacement
from search_spaces.product_space import ProductSpace


def two_action_space(choices: SearchChoices) -> ProductSpace:
    """The space of policies with at most two actions per list of blocks."""
    return ProductSpace(choices, [TwoActionEncoding(blocks) for blocks in choices.block_lists])


class TwoActionEncoding:
    """Two actions and where the second one begins, counted in distinct modules."""

    def __init__(self, choices: BlockListChoices) -> None:
        self._choices = choices
        path = choices.blocks.path
        self._first_action, self._second_action = f"{path}/first_action", f"{path}/second_action"
        self._num_first, self._segment_size = f"{path}/num_first", f"{path}/segment_size"
        self._levels: list[tuple[BlockListPlacement, ...]] = []
        self._seen: set[BlockListPlacement] = set()

    def parameters(self) -> tuple[Parameter, ...]:
        if len(self._choices.actions) == 1:
            return ()
        parameters: list[Parameter] = [Choice(self._first_action, self._choices.actions)]
        if self._choices.num_modules > 1:
            parameters.append(Choice(self._second_action, self._choices.actions))
            parameters.append(Integer(self._num_first, 1, self._choices.num_modules))
        if self._choices.segment_sizes:
            parameters.append(Choice(self._segment_size, self._choices.segment_sizes))
        return tuple(parameters)

    def decode(self, values: Mapping[str, ParameterValue]) -> BlockListPlacement:
        first = str(values.get(self._first_action, NONE))
        size = int(values[self._segment_size]) if self._choices.segment_sizes else None
        if self._choices.num_modules == 1 or len(self._choices.actions) == 1:
            return self._place(first, first, self._choices.num_modules, size)
        return self._place(first, str(values[self._second_action]), int(values[self._num_first]), size)

    def encode(self, placement: BlockListPlacement) -> dict[str, ParameterValue]:
        target = placement.canonical()
        for size in self._choices.segment_sizes or (None,):
            actions = self._choices.module_actions(target, size)
            num_first = next(iter(_borders(actions)), self._choices.num_modules)
            for first, last in product(self._spellings(actions[0]), self._spellings(actions[-1])):
                second = last if num_first < self._choices.num_modules else first
                if self._place(first, second, num_first, size) == target:
                    return self._values(first, second, num_first, size)
        raise ValueError(self._refusal(target))

    def num_levels(self) -> int:
        # The last level separates each module from the next: 1 module has 1 level, 2 have 2, 3 or 4 have 3.
        return (self._choices.num_modules - 1).bit_length() + 1

    def placements(self, level: int) -> Iterator[BlockListPlacement]:
        while len(self._levels) <= level:
            self._levels.append(tuple(self._distinct_placements(len(self._levels))))
        return iter(self._levels[level])

    def count_up_to(self, limit: int) -> int:
        every_placement = (placement for level in range(self.num_levels()) for placement in self.placements(level))
        return sum(1 for _ in islice(every_placement, limit))

    def _distinct_placements(self, level: int) -> Iterator[BlockListPlacement]:
        for num_first in self._splits(level):
            for first, second in product(self._choices.actions, repeat=2):
                if (first == second) != (level == 0):
                    continue
                segments = SEGMENT in (first, second)
                for size in self._choices.segment_sizes if segments else (None,):
                    placement = self._place(first, second, num_first, size)
                    if placement not in self._seen:
                        self._seen.add(placement)
                        yield placement

    def _splits(self, level: int) -> list[int]:
        """Numbers of first modules that this level adds: all, then the half, then both quarters and so on."""
        total = self._choices.num_modules
        if level == 0:
            return [total]
        coarser = {total * i >> (level - 1) for i in range(2 ** (level - 1) + 1)}
        return sorted({total * i >> level for i in range(2**level + 1)} - coarser)

    def _place(self, first: str, second: str, num_first: int, size: int | None) -> BlockListPlacement:
        return self._choices.place([first] * num_first + [second] * (self._choices.num_modules - num_first), size)

    def _spellings(self, action: str) -> list[str]:
        """Actions of this list that can decode to the given one: a segment of one block is a block."""
        return [a for a in self._choices.actions if a == action or (a == SEGMENT and action == BLOCK)]

    def _values(self, first: str, second: str, num_first: int, size: int | None) -> dict[str, ParameterValue]:
        wanted: dict[str, ParameterValue | None] = {
            self._first_action: first,
            self._second_action: second,
            self._num_first: num_first,
            self._segment_size: size,
        }
        names = [parameter.name for parameter in self.parameters()]
        return {name: value for name in names if (value := wanted[name]) is not None}

    def _refusal(self, target: BlockListPlacement) -> str:
        actions = self._choices.module_actions(target)
        for positions, action in zip(self._choices.modules, actions, strict=True):
            if not self._spellings(action):
                return (
                    f"{target.blocks}: block {positions[0]} has action {action}; this search tries "
                    f"{', '.join(self._choices.actions)}"
                )
        third = next(iter(_borders(actions)[1:]), None)
        if third is None:
            return self._choices.segment_refusal(target)
        return (
            f"{target.blocks}: block {self._choices.modules[third][0]} begins a third stretch ({actions[third]}); the "
            "two_action encoding has two per list, use per_block"
        )


def _borders(actions: Sequence[str]) -> list[int]:
    """Where the action differs from the one before."""
    return [i for i in range(1, len(actions)) if actions[i] != actions[i - 1]]
