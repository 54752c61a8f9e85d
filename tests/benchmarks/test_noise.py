from __future__ import annotations

import time
from typing import Any

import noise
import psutil
import pytest
from cpu_hog import cpu_hog

from tuner.speed_ratio import Ratio


def a_try(value: float, error: float, *, pair: str = "about 5 % apart", truth: float = 1.05) -> noise.Try:
    return noise.Try(
        pair=pair,
        truth=truth,
        by_trials=Ratio(1.0, 0.1),
        ratio=Ratio(value, error),
        num_rounds=20,
        num_steps=(5, 6),
        wall_time_s=3.0,
        load=1.5,
        step_times_s=(),
    )


@pytest.mark.parametrize(
    "value, error, is_equal, outcome",
    [
        (1.06, 0.01, False, "right"),
        (1.01, 0.01, False, "tie"),
        (0.95, 0.01, False, "wrong"),
        (0.99, 0.01, True, "tie"),
        (1.03, 0.01, True, "wrong"),
    ],
)
def test_a_try_is_right_where_it_tells_the_faster_one(value: float, error: float, is_equal: bool, outcome: str) -> None:
    assert a_try(value, error).outcome(is_equal) == outcome


@pytest.mark.parametrize("value, covers", [(1.031, True), (1.069, True), (1.02, False), (1.08, False)])
def test_the_truth_is_covered_within_two_errors(value: float, covers: bool) -> None:
    assert a_try(value, 0.01).covers_truth is covers


def test_the_table_counts_outcomes_of_each_pair() -> None:
    tries = [a_try(1.06, 0.01), a_try(1.04, 0.01), a_try(1.0, 0.02), a_try(0.9, 0.02, pair="equal", truth=1.0)]
    table = noise.table_of(tries, title="")
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert [row[:7] for row in rows] == [
        ("about 5 % apart", "1.050x", "3", "2", "0", "1", "2"),
        ("equal", "1.000x", "1", "0", "1", "0", "0"),
    ]


def test_policies_of_the_equal_pair_do_the_same_work_elsewhere() -> None:
    apart, equal = noise.PAIRS
    num_regions = [[sum(r.num_blocks for r in p.placement[0].regions) for p in pair.policies()] for pair in noise.PAIRS]
    assert num_regions == [[1, 2], [2, 2]]
    assert len({policy.key for policy in equal.policies()}) == len({policy.key for policy in apart.policies()}) == 2


def test_the_hog_loads_the_machine_now_and_then_and_leaves_nothing() -> None:
    seen: dict[int, Any] = {}
    with cpu_hog(seed=0, cores=1):
        deadline = time.monotonic() + 30
        while not any(child.cpu_times().user > 0.2 for child in seen.values() if child.is_running()):
            assert time.monotonic() < deadline, "the hog burns no time"
            seen |= {child.pid: child for child in psutil.Process().children(recursive=True)}
            time.sleep(0.05)
    time.sleep(0.2)
    assert [child for child in seen.values() if child.is_running()] == []
