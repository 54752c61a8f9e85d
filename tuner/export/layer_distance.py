"""How far apart recomputed layers are, for stacks that recompute one layer in every so many."""

from __future__ import annotations

from search_spaces.model_shape import BlockList
from search_spaces.policy import NONE, RecomputePolicy
from tuner.export.forms import layout_of


def layer_distance(policy: RecomputePolicy, lists: tuple[BlockList, ...]) -> int:
    """Blocks from one recomputed block to the next, of a policy that recomputes every k-th; 1 without recompute."""
    cells = [cell for of_list in layout_of(policy, lists) for cell in of_list]
    recomputed = [index for index, (action, _, _) in enumerate(cells) if action != NONE]
    if not recomputed:
        return 1
    # A single one is followed by the next only beyond the end.
    return recomputed[1] - recomputed[0] if len(recomputed) > 1 else len(cells)
