"""One action on every block of every list: the placements people try by hand, and where a coarse search begins."""

from __future__ import annotations

from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.policy import NONE, SEGMENT, BlockListPlacement


def uniform_placements(choices: SearchChoices) -> dict[str, tuple[BlockListPlacement, ...]]:
    """A placement of all lists for each action that some list can take, by action, ``none`` first.

    A list that cannot take the action keeps everything. Segments have the size nearest to the square root of the
    list's depth. Of a search whose placements are listed, only those on the list.
    """
    actions = dict.fromkeys((NONE, *(action for blocks in choices.block_lists for action in blocks.actions)))
    placements = {action: tuple(_everywhere(blocks, action) for blocks in choices.block_lists) for action in actions}
    if choices.allowed is None:
        return placements
    allowed = set(choices.allowed)
    return {action: everywhere for action, everywhere in placements.items() if everywhere in allowed}


def _everywhere(blocks: BlockListChoices, action: str) -> BlockListPlacement:
    here = action if action in blocks.actions else NONE
    return blocks.place([here] * blocks.num_modules, blocks.sqrt_segment_size if here == SEGMENT else None)
