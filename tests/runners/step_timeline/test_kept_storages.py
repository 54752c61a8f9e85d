from __future__ import annotations

from collections.abc import Sequence

import pytest

from runners.measure.allocation_trace import Allocation, AllocationTrace, Interval
from runners.step_timeline.kept_storages import REGION_INPUT, AllocationIndex, KeptStorage, kept_storages
from runners.step_timeline.save_log import Save, SaveLog, Use
from runners.step_timeline.saved_tensors import KeptView
from runners.step_timeline.step_recording import Place, Point, StepRecording

FORWARD = Place(("h.0",), "aten::mm")
BACKWARD = Place((), None, "MmBackward0")
ADDRESS = 1000


def view(shape: tuple[int, ...] = (2, 2), address: int = ADDRESS) -> KeptView:
    return KeptView(address, 16, shape, "float32")


class RecordedLog(SaveLog):
    """What a log has written down; point n is at n ns."""

    def __init__(self, saves: Sequence[Save], uses: Sequence[Use]) -> None:
        self.saves, self.uses = list(saves), list(uses)


def storages(saves: Sequence[Save], uses: Sequence[Use], changes: Sequence[tuple[int, int, int]]) -> list[KeptStorage]:
    points = [Point(save.point, save.point, FORWARD) for save in saves]
    points += [Point(use.point, use.point, BACKWARD) for use in uses]
    trace = AllocationTrace(tuple(changes), (Interval("forward", 0, 50),))
    return kept_storages(StepRecording(trace, tuple(points), {}), RecordedLog(saves, uses))


def test_an_address_that_is_used_again_is_another_storage() -> None:
    changes = [(1, 16, ADDRESS), (20, -16, ADDRESS), (30, 16, ADDRESS), (90, -16, ADDRESS)]
    found = storages([Save(10, (view(),)), Save(40, (view(),))], [Use(60, 1, (view(),))], changes)
    assert [each.allocation for each in found] == [Allocation(ADDRESS, 16, 1, 20), Allocation(ADDRESS, 16, 30, 90)]
    assert [each.last_use_ns for each in found] == [None, 60]


def test_what_was_there_before_has_no_allocation() -> None:
    (found,) = storages([Save(10, (view(),)), Save(12, (view((4,)),))], [], [])
    assert (found.allocation, found.num_bytes, len(found.kept_by)) == (None, 16, 2)


def test_a_use_goes_to_its_own_save_among_equal_ones() -> None:
    saves = [Save(10, (view(),)), Save(11, (view(),))]
    (found,) = storages(saves, [Use(60, 0, (view(),)), Use(70, 1, (view(),))], [(1, 16, ADDRESS)])
    assert [(kept.used_ns, kept.node) for kept in found.kept_by] == [(60, "MmBackward0"), (70, "MmBackward0")]


def test_a_use_of_what_a_region_dropped_goes_to_the_latest_equal_save_of_the_rebuild() -> None:
    saves = [Save(10, ()), Save(11, ()), Save(40, (view(),)), Save(41, (view(),)), Save(42, (view((4,)),))]
    uses = [Use(60, 1, (view(),)), Use(70, 0, (view(),))]
    (found,) = storages(saves, uses, [(30, 16, ADDRESS)])
    assert [kept.used_ns for kept in found.kept_by] == [70, 60, None]


def test_the_inputs_of_a_region_are_used_by_its_rebuild_and_by_no_node() -> None:
    saves = [Save(10, (view(),)), Save(11, (view(),), region="h.1")]
    (found,) = storages(saves, [Use(60, None, (view(),))], [(1, 16, ADDRESS)])
    saved, region = found.kept_by
    assert (saved.used_ns, region.used_ns, region.node) == (None, 60, None)
    assert (region.place.module, region.place.operator) == ("h.1", REGION_INPUT)


@pytest.mark.parametrize(("time_ns", "size"), [(0, None), (5, 8), (10, None), (15, 16), (99, 16)])
def test_the_index_finds_what_is_alive_at_that_time(time_ns: int, size: int | None) -> None:
    index = AllocationIndex([Allocation(ADDRESS, 16, 12, None), Allocation(ADDRESS, 8, 1, 10)])
    found = index.find(ADDRESS, time_ns)
    assert (found.num_bytes if found else None) == size
    assert index.find(ADDRESS + 1, time_ns) is None
