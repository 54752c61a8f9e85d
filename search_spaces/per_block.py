"""The large encoding: one action per block, and one segment size per list for neighbours that take ``segment``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise, product

from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.parameters import Choice, Parameter, ParameterValue
from search_spaces.policy import BLOCK, NONE, SEGMENT, BlockListPlacement
from search_spaces.product_space import ProductSpace


def per_block_space(choices: SearchChoices) -> ProductSpace:
    """The space of policies with an own action for every block."""
    return ProductSpace(choices, [PerBlockEncoding(blocks) for blocks in choices.block_lists])


class PerBlockEncoding:
    """An action per distinct module."""

    def __init__(self, choices: BlockListChoices) -> None:
        self._choices = choices
        path = choices.blocks.path
        self._action_names = [f"{path}/{positions[0]}" for positions in choices.modules]
        self._segment_size = f"{path}/segment_size"

    def parameters(self) -> tuple[Parameter, ...]:
        if len(self._choices.actions) == 1:
            return ()
        parameters: list[Parameter] = [Choice(name, self._choices.actions) for name in self._action_names]
        if self._choices.segment_sizes:
            parameters.append(Choice(self._segment_size, self._choices.segment_sizes))
        return tuple(parameters)

    def decode(self, values: Mapping[str, ParameterValue]) -> BlockListPlacement:
        size = int(values[self._segment_size]) if self._choices.segment_sizes else None
        return self._choices.place([str(values.get(name, NONE)) for name in self._action_names], size)

    def encode(self, placement: BlockListPlacement) -> dict[str, ParameterValue]:
        target = placement.canonical()
        actions, size = self._spell(target)
        if len(self._choices.actions) == 1:
            return {}
        values: dict[str, ParameterValue] = dict(zip(self._action_names, actions, strict=True))
        return values if size is None else {**values, self._segment_size: size}

    def num_levels(self) -> int:
        return (self._choices.num_modules - 1).bit_length() + 1

    def placements(self, level: int) -> Iterator[BlockListPlacement]:
        stretches = self._stretches(level)
        coarser = self._stretches(level - 1) if level else []
        for actions in product(self._choices.actions, repeat=len(stretches)):
            by_module = [
                action for (first, end), action in zip(stretches, actions, strict=True) for _ in range(first, end)
            ]
            if level == 0 or any(len(set(by_module[first:end])) > 1 for first, end in coarser):
                yield from self._over_segment_sizes(by_module)

    def count_up_to(self, limit: int) -> int:
        num_segment_free = len([a for a in self._choices.actions if a != SEGMENT]) ** self._choices.num_modules
        if num_segment_free >= limit:
            return limit
        every_placement = (placement for level in range(self.num_levels()) for placement in self.placements(level))
        return sum(1 for _ in islice(every_placement, limit))

    def _stretches(self, level: int) -> list[tuple[int, int]]:
        """First module and end of each of the stretches, at most ``2**level``, into which a level divides the list."""
        total = self._choices.num_modules
        borders = sorted({total * i >> level for i in range(2**level + 1)})
        return list(pairwise(borders))

    def _over_segment_sizes(self, actions: Sequence[str]) -> Iterator[BlockListPlacement]:
        """The placements that are spelled with these actions; one that is spelled otherwise comes with those."""
        if SEGMENT not in actions:
            yield self._choices.place(actions)
            return
        for size in self._choices.segment_sizes:
            placement = self._choices.place(actions, size)
            if self._spell(placement) == (tuple(actions), size):
                yield placement

    def _spell(self, target: BlockListPlacement) -> tuple[tuple[str, ...], int | None]:
        """The one spelling of a canonical placement: an action per module, and a segment size where there is a choice.

        Raises:
            ValueError: There is none.
        """
        for size in self._choices.segment_sizes or (None,):
            actions = tuple(map(self._spelling, self._choices.module_actions(target, size)))
            unknown = next((i for i, action in enumerate(actions) if action not in self._choices.actions), None)
            if unknown is not None:
                raise ValueError(
                    f"{target.blocks}: block {self._choices.modules[unknown][0]} has action {actions[unknown]}; "
                    f"this search tries {', '.join(self._choices.actions)}"
                )
            if self._choices.place(actions, size) == target:
                return actions, size
        raise ValueError(self._choices.segment_refusal(target))

    def _spelling(self, action: str) -> str:
        """A segment of one block is a block, and is spelled so where that is an action of its own."""
        return SEGMENT if action == BLOCK and BLOCK not in self._choices.actions else action
