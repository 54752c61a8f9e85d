from __future__ import annotations

import pytest

from runners.diagnosis.records import UnitCost
from tuner.diagnosis.ablation_table import ablation_table, alike_costs, sizes_table


def cost(first: int, last: int, action: str, saved: int, ms: float, size: int = 8) -> UnitCost:
    return UnitCost(
        blocks="h",
        first=first,
        last=last,
        action=action,
        micro_batch_size=size,
        saved_bytes=saved * 2**20,
        rebuild_time_s=ms / 1e3,
    )


def test_alike_regions_share_a_row_and_the_best_trade_comes_first() -> None:
    costs = [cost(i, i, "block", 8, ms) for i, ms in enumerate((4, 2, 9))] + [cost(0, 1, "segment", 17, 4)]
    segment, block = alike_costs(costs)
    assert (segment.action, segment.where(), segment.saved_bytes_per_ms / 2**20) == ("segment(2)", "0-1", 4.25)
    assert (block.action, block.where()) == ("block", "0-2")
    assert block.rebuild_time_s == pytest.approx(0.004), "the median"


def test_regions_that_save_other_bytes_have_rows_of_their_own() -> None:
    assert [each.where() for each in alike_costs([cost(0, 0, "mlp", 2, 1), cost(1, 1, "mlp", 1, 1)])] == ["0", "1"]


def test_many_segments_are_cut_short() -> None:
    (each,) = alike_costs([cost(2 * i, 2 * i + 1, "segment", 3, 1) for i in range(6)])
    assert each.where() == "0-1, 2-3, .. 10-11"


def test_only_the_size_that_is_asked_for_is_shown() -> None:
    table = ablation_table([cost(0, 0, "mlp", 2, 1), cost(0, 0, "mlp", 1, 1, size=4)], 8)
    assert table.row_count == 1


def test_sizes_stand_side_by_side() -> None:
    costs = [cost(0, 0, "mlp", 2 * size, size, size=size) for size in (8, 4, 2, 1)]
    table = sizes_table(costs)
    assert table is not None
    assert [column.header for column in table.columns] == ["action", "at 8", "at 4", "at 2", "at 1"]
    assert list(table.columns[2].cells) == ["8.0 MiB, 4.00 ms"]


def test_a_single_size_needs_no_such_table() -> None:
    assert sizes_table([cost(0, 0, "mlp", 1, 1)]) is None
