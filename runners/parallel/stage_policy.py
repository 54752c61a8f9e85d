"""What of a whole model's policy is one stage's. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runners.parallel.records import PipelineCut
from search_spaces.policy import SEGMENT, PolicyError, RecomputePolicy, Region


def policy_of_stage(policy: RecomputePolicy, cut: PipelineCut, stage: int) -> RecomputePolicy:
    """The policy with the regions of the stage's own blocks; they keep their places in the whole list.

    Raises:
        PolicyError: A segment reaches over the border of a stage: what is recomputed at once is on one device.
    """
    own = cut.blocks_of(stage)
    placement = tuple(
        replace(each, regions=tuple(part for region in each.regions for part in _within(region, own, each.blocks)))
        for each in policy.placement
    )
    return replace(policy, placement=placement)


def _within(region: Region, own: range, path: str) -> Iterator[Region]:
    first, last = max(region.first, own.start), min(region.last, own.stop - 1)
    if region.action == SEGMENT:
        for begin, end in region.segments():
            if begin < first <= end or begin <= last < end:
                border = own.start if begin < own.start else own.stop
                raise PolicyError(
                    f"placement of {path}: the segment of blocks {begin} to {end} reaches over the border of a stage, "
                    f"which begins at block {border}; end a segment there, or use another runner.pipeline_stages"
                )
    if first <= last:
        yield replace(region, first=first, last=last)
