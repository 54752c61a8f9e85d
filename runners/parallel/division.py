"""What of a policy decides how a model is divided over ranks. No torch."""

from __future__ import annotations

from runners.parallel.records import Strategy
from search_spaces.policy import SEGMENT, RecomputePolicy


def segment_ends(policy: RecomputePolicy | None) -> dict[str, dict[int, int]]:
    """First block to last block of each segment, by the path of its list; the blocks of one are divided as a whole."""
    placements = () if policy is None else policy.placement
    return {
        placement.blocks: {
            first: last for region in placement.regions if region.action == SEGMENT for first, last in region.segments()
        }
        for placement in placements
    }


def division_key(strategy: Strategy, policy: RecomputePolicy | None) -> str:
    """Equal for policies that divide a model alike."""
    if strategy != "fsdp2":
        return strategy
    ends = {path: segments for path, segments in sorted(segment_ends(policy).items()) if segments}
    return f"{strategy} {ends} {policy is None or policy.reshard_after_forward is not False}"
