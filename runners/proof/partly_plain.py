"""What a policy is compared with where the plain model does not fit at all: the model with only some blocks recomputed.

Each of these runs keeps everything of another part of the blocks and rebuilds every other block whole. A policy that
agrees with all of them rebuilds each block as it runs plainly.
"""

from __future__ import annotations

from dataclasses import replace

from search_spaces.policy import BLOCK, BlockListPlacement, RecomputePolicy, Region


def partly_plain(policy: RecomputePolicy, num_parts: int) -> list[RecomputePolicy]:
    """As many policies for the same blocks and batch; empty where there are fewer blocks than that.

    Whatever the policy does about the state of random generators, these preserve it.

    Args:
        num_parts: 2 at least.
    """
    lists = list(enumerate(policy.placement))
    positions = [(path, block) for path, placement in lists for block in range(placement.num_blocks)]
    if num_parts > len(positions):
        return []
    parts = [set(positions[part::num_parts]) for part in range(num_parts)]
    return [_with_plain(policy, plain) for plain in parts]


def _with_plain(policy: RecomputePolicy, plain: set[tuple[int, int]]) -> RecomputePolicy:
    placements = tuple(
        _placement(placement, {block for of_path, block in plain if of_path == path})
        for path, placement in enumerate(policy.placement)
    )
    return RecomputePolicy(policy.batch, placements, reshard_after_forward=policy.reshard_after_forward)


def _placement(placement: BlockListPlacement, plain: set[int]) -> BlockListPlacement:
    regions = tuple(Region(block, block, BLOCK) for block in range(placement.num_blocks) if block not in plain)
    return replace(placement, regions=regions)
