from __future__ import annotations

import pytest

from runners.parallel.records import PipelineCut
from runners.parallel.stage_policy import policy_of_stage
from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region

CUT = PipelineCut(blocks="blocks", first_blocks=(0, 3, 5), num_blocks=7)
BATCH = BatchShape.split(global_batch_size=8, micro_batch_size=2)


def policy_of(*regions: Region) -> RecomputePolicy:
    return RecomputePolicy(BATCH, (BlockListPlacement("blocks", 7, (("mlp", "mlp"),), regions),))


def regions_of(policy: RecomputePolicy, stage: int) -> tuple[Region, ...]:
    return policy_of_stage(policy, CUT, stage).placement[0].regions


def test_each_stage_has_its_own_blocks_at_their_places_in_the_whole_list() -> None:
    policy = policy_of(Region(1, 3, "block"), Region(4, 6, "mlp"))
    assert [regions_of(policy, stage) for stage in range(3)] == [
        (Region(1, 2, "block"),),
        (Region(3, 3, "block"), Region(4, 4, "mlp")),
        (Region(5, 6, "mlp"),),
    ]
    assert policy_of_stage(policy, CUT, 1).placement[0].num_blocks == 7


def test_segments_that_end_at_the_border_are_whole_on_their_stage() -> None:
    policy = policy_of(Region(0, 2, "segment", 3), Region(3, 6, "segment", 2))
    assert [regions_of(policy, stage) for stage in range(3)] == [
        (Region(0, 2, "segment", 3),),
        (Region(3, 4, "segment", 2),),
        (Region(5, 6, "segment", 2),),
    ]


@pytest.mark.parametrize(("stage", "border"), [(0, 3), (1, 3)])
def test_a_segment_over_a_border_is_refused_on_both_sides(stage: int, border: int) -> None:
    with pytest.raises(
        PolicyError, match=f"blocks 2 to 3 reaches over the border of a stage, which begins at block {border}"
    ):
        regions_of(policy_of(Region(0, 3, "segment", 2)), stage)
