"""Which candidates are not worth a look, whatever their times."""

from __future__ import annotations

from dataclasses import replace

import made_up
import numpy as np

from search_spaces.choices import SearchChoices
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.prediction.candidates import listed, without_waste
from tuner.prediction.placement_features import PlacementFeatures

CHOICES = made_up.made_up_choices([4], global_batch_size=2)


def placed(size: int, *regions: Region) -> RecomputePolicy:
    batch = BatchShape.split(global_batch_size=2, micro_batch_size=size)
    return RecomputePolicy(batch, (BlockListPlacement("list0", 4, made_up.UNITS, regions),)).canonical()


PLAIN, SMALL = placed(2), placed(1)
MLP, BLOCK = placed(2, Region(0, 3, "mlp")), placed(2, Region(0, 3, "block"))


def left_of(peaks: dict[RecomputePolicy, float], choices: SearchChoices = CHOICES) -> list[RecomputePolicy]:
    features = PlacementFeatures(choices)
    candidates = listed(list(peaks), np.array(list(peaks.values())), features)
    return [candidates.policy(int(row)) for row in without_waste(candidates, np.arange(len(peaks)), features)]


def test_a_rebuild_that_saves_nothing_is_left_out_where_the_plain_step_fits() -> None:
    assert left_of({PLAIN: 100.0, MLP: 99.5, BLOCK: 98.0}) == [PLAIN, BLOCK]


def test_where_the_plain_step_does_not_fit_every_byte_may_count() -> None:
    assert left_of({MLP: 99.5, BLOCK: 101.0}) == [MLP, BLOCK]


def test_the_plain_step_of_another_size_is_no_measure() -> None:
    assert left_of({SMALL: 50.0, MLP: 99.5}) == [SMALL, MLP]


def test_blocks_that_stay_whole_are_no_rebuild() -> None:
    """They take more memory for less time; what is rebuilt beside them is compared with what is not."""
    choices = replace(CHOICES, reshard_after_forward="search")
    plain, mlp, whole, whole_mlp = (
        replace(policy, reshard_after_forward=reshards) for reshards in (None, False) for policy in (PLAIN, MLP)
    )
    assert left_of({plain: 100.0, mlp: 90.0, whole: 120.0, whole_mlp: 119.5}, choices) == [plain, mlp, whole]
