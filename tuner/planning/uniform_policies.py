"""One action on all blocks: the placements that people know by name, at every size of segment."""

from __future__ import annotations

from search_spaces.actions import shown_action
from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.policy import NONE, SEGMENT, BlockListPlacement, RecomputePolicy
from search_spaces.uniform import uniform_placements


def uniform_policies(choices: SearchChoices) -> dict[str, tuple[RecomputePolicy, ...]]:
    """Canonical policies by action, ``none`` first and each size of segment by itself; largest micro-batch first."""
    placements = uniform_placements(choices)
    placements.pop(SEGMENT, None)
    sizes = sorted({size for blocks in choices.block_lists for size in blocks.segment_sizes if size > 1})
    for size in sizes:
        placements[f"{SEGMENT}({size})"] = tuple(_in_segments(blocks, size) for blocks in choices.block_lists)
    return {
        shown_action(action): tuple(choices.policy(batch, placement) for batch in choices.batches)
        for action, placement in placements.items()
    }


def _in_segments(blocks: BlockListChoices, size: int) -> BlockListPlacement:
    """Segments of the possible size nearest to the wanted one; plain where a list cannot take segments."""
    nearest = min(blocks.segment_sizes, key=lambda own: (abs(own - size), own), default=None)
    action = NONE if nearest is None else SEGMENT
    return blocks.place([action] * blocks.num_modules, nearest)
