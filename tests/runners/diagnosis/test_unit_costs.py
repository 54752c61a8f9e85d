from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runners.diagnosis.records import UnitCost

#: Bytes of one row of width 16 for each of 8 samples.
ROWS = 8 * 16 * 4
Make = Callable[..., Any]


def saved(costs: tuple[UnitCost, ...], size: int = 8) -> dict[tuple[str, int, int], int]:
    return {(c.action, c.first, c.last): c.saved_bytes for c in costs if c.micro_batch_size == size}


class TestSavedBytes:
    def test_are_those_counted_by_hand(self, subject: Make) -> None:
        # Each block keeps its input, tanh's output, and two tensors four times as wide within the MLP.
        found = saved(subject("diagnosed.py:ladder").diagnose(only_unit_costs=True).unit_costs)
        for block in range(4):
            assert found["attention", block, block] == 0, "the MLP keeps what attention returns"
            assert found["mlp", block, block] == 8 * ROWS
            assert found["attention+mlp", block, block] == 8 * ROWS
            assert found["block", block, block] == 9 * ROWS
        assert found["segment", 0, 1] == found["segment", 2, 3] == 2 * 9 * ROWS + ROWS

    def test_grow_with_the_micro_batch_in_proportion(self, subject: Make) -> None:
        costs = subject("diagnosed.py:ladder", sizes=(8, 2)).diagnose(only_unit_costs=True).unit_costs
        large, small = saved(costs, 8), saved(costs, 2)
        assert large.keys() == small.keys()
        assert all(large[key] == 4 * small[key] for key in large)

    def test_are_less_by_the_states_of_generators_that_regions_keep(self, subject: Make) -> None:
        found = saved(subject("diagnosed.py:ladder", preserve_rng_state=True).diagnose(only_unit_costs=True).unit_costs)
        state = torch.get_rng_state().nbytes
        assert found["attention", 1, 1] == -state
        assert found["attention+mlp", 1, 1] == 8 * ROWS - 2 * state
        assert found["segment", 0, 1] == 19 * ROWS - state

    def test_of_a_block_at_two_positions_are_those_of_both_calls(self, subject: Make) -> None:
        found = saved(subject("diagnosed.py:one_block_twice").diagnose(only_unit_costs=True).unit_costs)
        assert found["block", 1, 1] == 9 * ROWS
        assert found["block", 0, 0] == 2 * 9 * ROWS
        assert ("block", 2, 2) not in found, "the first position stands for both"

    def test_do_not_depend_on_what_else_the_search_allows(self, subject: Make) -> None:
        made = subject("diagnosed.py:ladder", segment_sizes=(1,))
        assert {action for action, _, _ in saved(made.diagnose(only_unit_costs=True).unit_costs)} == {
            "attention",
            "mlp",
            "attention+mlp",
            "block",
        }


class TestOffloading:
    def test_saves_nothing_where_the_host_is_the_device_and_takes_the_copies(self, subject: Make) -> None:
        made = subject("diagnosed.py:ladder", actions=("none", "offload"))
        costs = made.diagnose(only_unit_costs=True).unit_costs
        offloaded = [cost for cost in costs if cost.action == "offload"]
        assert [cost.first for cost in offloaded] == [0, 1, 2, 3]
        assert all(cost.saved_bytes <= 0 < cost.rebuild_time_s for cost in offloaded)

    def test_is_left_out_where_it_is_not_searched(self, subject: Make) -> None:
        costs = subject("diagnosed.py:ladder").diagnose(only_unit_costs=True).unit_costs
        assert "offload" not in {cost.action for cost in costs}


class TestRebuildTimes:
    def test_are_those_of_what_runs_again(self, subject: Make) -> None:
        made = subject("diagnosed.py:slow", {"attn_s": 0.01, "mlp_s": 0.03})
        costs = made.diagnose(only_unit_costs=True).unit_costs
        times = {(c.action, c.first): c.rebuild_time_s for c in costs}
        for block in range(2):
            assert 0.01 <= times["attention", block] < 0.03
            assert times["mlp", block] >= 0.03
            assert times["attention+mlp", block] == pytest.approx(times["attention", block] + times["mlp", block])
            assert times["block", block] >= 0.04
        assert times["segment", 0] >= 0.08

    def test_the_table_is_sorted_by_their_ratio_to_bytes(self) -> None:
        cost = UnitCost(
            blocks="h", first=0, last=0, action="mlp", micro_batch_size=1, saved_bytes=6, rebuild_time_s=2e-3
        )
        assert cost.saved_bytes_per_ms == pytest.approx(3)
        assert cost.model_copy(update={"rebuild_time_s": 0.0}).saved_bytes_per_ms == float("inf")


class TestBudget:
    def test_sizes_that_would_take_longer_are_left_out(self, subject: Make) -> None:
        made = subject("diagnosed.py:slow_for_many", sizes=(8, 4, 2))
        found = made.diagnose(only_unit_costs=True, budget_s=20.0)
        assert {cost.micro_batch_size for cost in found.unit_costs} == {4, 2}
        assert found.sizes_left_out == (8,)

    def test_a_long_list_is_told_by_the_first_middle_and_last_of_each_kind(self, subject: Make) -> None:
        made = subject("diagnosed.py:ladder", {"num_blocks": 20})
        found = saved(made.diagnose(only_unit_costs=True).unit_costs)
        assert sorted(first for action, first, _ in found if action == "block") == [0, 1, 10, 18, 19]
        assert sorted(first for action, first, _ in found if action == "segment") == [0, 2, 10, 16, 18]
        assert sorted(first for action, first, _ in found if action == "mlp") == [0, 10, 19]
