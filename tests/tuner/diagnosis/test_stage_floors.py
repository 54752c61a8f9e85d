from __future__ import annotations

import pytest

from search_spaces.policy import BatchShape, RecomputePolicy
from tuner.diagnosis.least_memory import LeastMemory
from tuner.diagnosis.predicted_sizes import SizePeaks
from tuner.diagnosis.stage_floors import stage_floors_text

MIB = 2**20
SIZES = tuple(
    SizePeaks(size, plain_bytes=(10 + 8 * size) * MIB, least_bytes=(8 + 2 * size) * MIB) for size in (4, 2, 1)
)


def batch(size: int) -> BatchShape:
    return BatchShape.split(global_batch_size=8, micro_batch_size=size)


FLOORS = [LeastMemory(RecomputePolicy(batch(s.micro_batch_size)), s.least_bytes, "all placements") for s in SIZES]


def test_floors_are_told_of_the_plain_steps_size_and_of_the_smallest() -> None:
    first, last, _ = stage_floors_text(FLOORS, SIZES, batch(4), 100 * MIB)
    assert first == (
        "floor at micro-batch 4 x 2: no placement of this search is predicted to take less than 16.0 MiB on its worst "
        "stage: none @4x2."
    )
    assert last.startswith("floor at micro-batch 1 x 8: no placement of this search is predicted to take less than 10")


@pytest.mark.parametrize(
    ("cap", "verdict"),
    [
        (26, "predicted to fit into 26.0 MiB on each stage is 4, without recompute 2."),
        (12, "predicted to fit into 12.0 MiB on each stage is 2, without recompute none fits."),
        (9, "No placement of this search is predicted to fit into 9.0 MiB on each stage: the least is 10.0 MiB."),
    ],
)
def test_whether_recompute_can_help_under_the_cap(cap: int, verdict: str) -> None:
    assert verdict in list(stage_floors_text(FLOORS, SIZES, batch(4), cap * MIB))[-1]


def test_without_predictions_nothing_is_said() -> None:
    floors = [LeastMemory(RecomputePolicy(batch(size))) for size in (4, 1)]
    assert list(stage_floors_text(floors, (), batch(4), MIB)) == []
