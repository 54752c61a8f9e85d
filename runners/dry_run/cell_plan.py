"""Which placements to trace so that every cell of a list is seen: few, because one trace shows many cells at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from search_spaces.choices import BlockListChoices
from search_spaces.policy import BLOCK, NONE, SEGMENT, BlockListPlacement, Region


def traced_placements(choices: BlockListChoices, kinds: Sequence[Hashable]) -> list[BlockListPlacement]:
    """Placements that show every action on every kind of block, and segments of some lengths.

    Deep lists need no more of them than shallow ones: the blocks of one kind share the actions out among themselves.

    Args:
        kinds: Equal for modules of the list that behave alike, shape (num_modules,).
    """
    needs = _Needs(choices, kinds)
    placements = []
    while not needs.are_met:
        regions = tuple(needs.next_row())
        if not regions:
            break  # What is left are segments longer than any run of blocks that can take one.
        placements.append(
            BlockListPlacement(choices.blocks.path, choices.blocks.num_blocks, choices.blocks.units, regions)
        )
    return placements


class _Needs:
    """What has not been placed yet."""

    def __init__(self, choices: BlockListChoices, kinds: Sequence[Hashable]) -> None:
        self._modules = choices.modules
        self._kinds = kinds
        actions = [action for action in choices.actions if action not in (NONE, SEGMENT)]
        if SEGMENT in choices.actions and BLOCK not in actions:
            actions.append(BLOCK)  # What a segment leaves over may be a single block.
        self._actions = {kind: list(actions) for kind in kinds}
        self._lengths = _segment_lengths(choices.segment_sizes)

    @property
    def are_met(self) -> bool:
        return not self._lengths and not any(self._actions.values())

    def next_row(self) -> Iterator[Region]:
        """Regions of one placement, in order; with as much of what is needed as there is room for."""
        regions: list[Region] = []
        index = 0
        while index < len(self._modules):
            wanted = self._actions[self._kinds[index]]
            length = self._segment_at(index)
            if wanted:
                regions += [Region(p, p, wanted[0]) for p in self._modules[index]]
                del wanted[0]
                index += 1
            elif length is not None:
                regions.append(Region(index, index + length - 1, SEGMENT, length))
                self._lengths.remove(length)
                index += length
            else:
                index += 1
        return iter(sorted(regions, key=lambda region: region.first))

    def _segment_at(self, index: int) -> int | None:
        """The longest needed segment that fits from here: over blocks of one kind, or of any where none has room."""
        run = _run_length(self._kinds, index)
        longest_run = max(_run_length(self._kinds, start) for start in range(len(self._kinds)))
        fitting = [
            length for length in self._lengths if length <= (run if length <= longest_run else len(self._kinds) - index)
        ]
        return max(fitting, default=None)


def _run_length(kinds: Sequence[Hashable], first: int) -> int:
    """Modules of one kind in a row from here on."""
    return next((n for n, kind in enumerate(kinds[first:]) if kind != kinds[first]), len(kinds) - first)


def _segment_lengths(sizes: Sequence[int]) -> list[int]:
    """The lengths to be traced. Those between follow in a straight line; a single block is no segment."""
    lengths = {size for size in sizes if size > 1}
    return sorted(lengths | {2} if lengths else lengths)
