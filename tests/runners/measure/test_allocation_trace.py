from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.measure.allocation_trace import (
    Allocation,
    AllocationRecorder,
    AllocationTrace,
    Interval,
    bytes_alive_by_kind,
)
from runners.measure.phases import Phase

FORWARD = Interval(Phase.FORWARD.value, 0, 100)
BACKWARD = Interval(Phase.BACKWARD.value, 100, 200)
RECOMPUTE = Interval(Phase.RECOMPUTE.value, 120, 140)


def trace(*changes: tuple[int, int, int], intervals: Sequence[Interval] = ()) -> AllocationTrace:
    return AllocationTrace(changes, tuple(intervals))


class TestPeak:
    def test_is_the_most_that_was_gained_and_when(self) -> None:
        assert trace((1, 10, 1), (2, 5, 2), (3, -10, 1), (4, 7, 3)).peak() == (15, 2)

    def test_memory_that_only_falls_has_its_peak_at_the_start(self) -> None:
        assert trace((1, -10, 1), (2, -5, 2)).peak() == (0, 1)

    def test_nothing_at_all(self) -> None:
        assert trace().peak() == (0, 0)

    def test_blocks_from_before_that_are_freed_make_room(self) -> None:
        assert trace((1, -10, 9), (2, 12, 1)).peak() == (2, 2)

    @given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 6)), max_size=40))
    def test_agrees_with_running_a_table_of_live_blocks(self, requests: list[tuple[int, int]]) -> None:
        live: dict[int, int] = {}
        changes, peak = [], 0
        for time, (size, address) in enumerate(requests):
            if address in live:
                changes.append((time, -live.pop(address), address))
            else:
                live[address] = size
                changes.append((time, size, address))
            peak = max(peak, sum(live.values()))
        recorded = trace(*changes)
        assert recorded.peak()[0] == peak
        left = [block for block in recorded.allocations() if block.freed_ns is None]
        assert {block.address: block.num_bytes for block in left} == live


class TestAllocations:
    def test_an_address_that_is_used_again_is_another_block(self) -> None:
        blocks = list(trace((1, 10, 1), (2, -10, 1), (3, 20, 1)).allocations())
        assert blocks == [Allocation(1, 10, 1, 2), Allocation(1, 20, 3, None)]

    def test_since_leaves_out_what_was_before(self) -> None:
        later = trace((1, 10, 1), (5, 20, 2), intervals=[FORWARD, BACKWARD]).since(3)
        assert later.changes == ((5, 20, 2),)
        assert later.named("backward") == [BACKWARD]
        assert later.named("forward") == []


class TestKinds:
    def kinds(self, *changes: tuple[int, int, int], at_ns: int, gradients: Sequence[int] = ()) -> tuple[int, int, int]:
        recorded = trace(*changes, intervals=[FORWARD, BACKWARD, RECOMPUTE])
        alive = bytes_alive_by_kind(recorded, at_ns, gradients, gradients_complete_ns=200)
        return alive["gradients"], alive["activations"], alive["temporary"]

    def test_kept_from_forward_is_an_activation_and_scratch_is_temporary(self) -> None:
        assert self.kinds((10, 1, 1), (20, 2, 2), (30, -2, 2), at_ns=25) == (0, 1, 2)

    def test_kept_from_a_rebuild_is_an_activation(self) -> None:
        assert self.kinds((125, 4, 1), (130, 8, 2), (135, -8, 2), (150, -4, 1), at_ns=132) == (0, 4, 8)

    def test_made_in_backward_is_temporary(self) -> None:
        assert self.kinds((150, 4, 1), (160, -4, 1), at_ns=155) == (0, 0, 4)

    def test_complete_gradient_is_told_from_an_earlier_block_at_its_address(self) -> None:
        changes = [(110, 4, 7), (115, -4, 7), (150, 16, 7)]
        assert self.kinds(*changes, at_ns=112, gradients=[7]) == (0, 0, 4)
        assert self.kinds(*changes, at_ns=155, gradients=[7]) == (16, 0, 0)

    def test_gradient_stays_one_during_the_update(self) -> None:
        assert self.kinds((150, 16, 7), (210, 3, 8), (220, -16, 7), at_ns=215, gradients=[7]) == (16, 0, 3)

    def test_what_is_freed_or_not_yet_made_does_not_count(self) -> None:
        assert self.kinds((10, 1, 1), (20, -1, 1), (160, 5, 2), at_ns=150) == (0, 0, 0)


class TestRecorder:
    def test_every_allocation_and_mark_is_recorded(self) -> None:
        recorder = AllocationRecorder()
        with recorder.recording():
            with recorder.interval("measured"):
                kept = torch.empty(1000)
                torch.empty(5000)
            with recorder.watching(Phase.FORWARD):
                torch.empty(70)
        recorded = recorder.trace()
        (measured,), (forward,) = recorded.named("measured"), recorded.named("forward")
        assert measured.start_ns < measured.end_ns <= forward.start_ns
        assert [change[1] for change in recorded.changes] == [4000, 20000, -20000, 280, -280]
        assert recorded.peak()[0] == 24000
        assert next(recorded.allocations()).num_bytes in (4000, 20000)
        assert kept.data_ptr() == recorded.changes[0][2]

    def test_kernels_scratch_is_recorded(self) -> None:
        recorder = AllocationRecorder()
        values = torch.randn(500, 500)
        with recorder.recording():
            values.sort(dim=0)
        assert recorder.trace().peak()[0] > 500 * 500 * (4 + 8)

    @pytest.mark.parametrize("steps", [1, 3])
    def test_balance_of_a_step_that_keeps_nothing_is_zero(self, steps: int) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        recorder = AllocationRecorder()
        with recorder.recording():
            for _ in range(steps):
                model(torch.randn(4, 8)).sum().backward()
                model.zero_grad(set_to_none=True)
        assert sum(change[1] for change in recorder.trace().changes) == 0

    @pytest.mark.parametrize("is_address_used_again", [True, False])
    def test_what_another_thread_gives_back_is_not_seen_and_that_is_known(self, is_address_used_again: bool) -> None:
        held = []
        recorder = AllocationRecorder()
        with recorder.recording():
            held.append(torch.empty(3000))
            address = held[0].data_ptr()
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
        trace = recorder.trace()
        if is_address_used_again:
            trace = AllocationTrace((*trace.changes, (trace.changes[-1][0] + 1, 8, address)), ())
        assert trace.lacks_frees(live={address} if is_address_used_again else set())

    def test_nothing_lacks_where_all_that_is_alive_is_known(self) -> None:
        recorder = AllocationRecorder()
        with recorder.recording():
            kept = torch.empty(100)
            torch.empty(200)
        assert not recorder.trace().lacks_frees({kept.data_ptr()})
