from __future__ import annotations

from runners.diagnosis.records import UnitCost
from tuner.report.ablation import ablation_tables

MIB = 2**20


def cost(
    first: int, action: str, saved_mib: float, rebuild_ms: float, *, last: int | None = None, size: int = 4
) -> UnitCost:
    return UnitCost(
        blocks="h",
        first=first,
        last=first if last is None else last,
        action=action,
        micro_batch_size=size,
        saved_bytes=int(saved_mib * MIB),
        rebuild_time_s=rebuild_ms / 1000,
    )


def test_what_buys_most_memory_for_its_time_comes_first() -> None:
    (table,) = ablation_tables([cost(0, "mlp", 10, 5), cost(0, "attention", 6, 1), cost(0, "block", 16, 4)])
    assert [row.action for row in table.rows] == ["attention", "block", "mlp"]
    assert [row.bytes_per_ms for row in table.rows] == ["6.0 MiB per ms", "4.0 MiB per ms", "2.0 MiB per ms"]
    assert [round(row.share_pct) for row in table.rows] == [100, 67, 33]


def test_blocks_that_save_the_same_share_a_row() -> None:
    costs = [cost(block, "mlp", 10, 1 + block / 10) for block in (0, 1, 2, 4)] + [cost(3, "mlp", 2, 1)]
    (table,) = ablation_tables(costs)
    assert [(row.regions, row.saved, row.rebuild) for row in table.rows] == [
        ("0-2, 4", "10.0 MiB", "1.15 ms (1.00-1.40)"),
        ("3", "2.0 MiB", "1.00 ms"),
    ]


def test_each_micro_batch_has_a_table_the_largest_first() -> None:
    tables = ablation_tables([cost(0, "mlp", 1, 1, size=2), cost(0, "mlp", 2, 2, size=4)])
    assert [table.micro_batch_size for table in tables] == [4, 2]


def test_segments_of_another_length_are_another_action() -> None:
    (table,) = ablation_tables([cost(0, "segment", 20, 4, last=1), cost(0, "segment", 30, 5, last=2)])
    assert [(row.action, row.regions) for row in table.rows] == [("segment(3)", "0-2"), ("segment(2)", "0-1")]


def test_what_costs_no_time_has_no_price() -> None:
    (table,) = ablation_tables([cost(0, "mlp", 1, 1), cost(0, "norm", 1, 0), cost(0, "attention", 0, 0)])
    assert [(row.action, row.rebuild, row.bytes_per_ms) for row in table.rows] == [
        ("norm", "0", ""),
        ("mlp", "1.00 ms", "1.0 MiB per ms"),
        ("attention", "0", ""),
    ]


def test_a_model_of_many_kinds_of_blocks_shows_the_rows_that_buy_most() -> None:
    (table,) = ablation_tables([cost(block, "mlp", 1 + block, 1) for block in range(50)])
    assert (len(table.rows), table.num_left_out, table.rows[0].regions) == (40, 10, "49")


def test_nothing_measured_is_no_table() -> None:
    assert ablation_tables([]) == []
