from __future__ import annotations

from typing import Any

import pytest

from runners.devices.registry import open_device
from runners.measure.copy_times import HostCopies, PlainForward
from runners.measure.host_copies import best_time_s, measure_host_copies
from runners.trial import InspectionSpec
from runners.worker import TrialWorker

Trials = Any


def test_on_a_cpu_both_ways_are_one_copy_that_takes_the_computations_time() -> None:
    copies = measure_host_copies(open_device("cpu"))
    assert copies.to_host_bytes_per_s == copies.from_host_bytes_per_s > 0
    assert not copies.run_beside


def test_the_best_of_a_few_times_counts() -> None:
    calls: list[int] = []
    assert best_time_s(lambda: calls.append(1), open_device("cpu")) > 0
    assert len(calls) > 1


def test_what_the_computation_cannot_hide_is_added() -> None:
    in_turn = HostCopies(to_host_bytes_per_s=10.0, from_host_bytes_per_s=20.0, run_beside=False)
    assert in_turn.both_ways_s(100) == in_turn.added_s(100, forward_s=7.0) == pytest.approx(15.0)
    beside = in_turn.model_copy(update={"run_beside": True})
    # 10 s there beside a forward pass, 5 s back beside a backward of twice its length.
    assert beside.added_s(100, forward_s=7.0) == pytest.approx(3.0)
    assert beside.added_s(100, forward_s=2.0) == pytest.approx(8.0 + 1.0)
    assert beside.added_s(100, forward_s=10.0) == 0.0


def test_a_forward_pass_is_scaled_to_other_sizes() -> None:
    plain = PlainForward(micro_batch_size=2, time_s=0.5)
    assert plain.forward_s(8) == pytest.approx(2.0)
    assert plain.step_s(8) == pytest.approx(6.0)


def test_an_inspection_measures_them_where_it_is_asked_to(trials: Trials) -> None:
    workload = trials("chance.py:dropout").workload()
    plain, asked = (
        TrialWorker().inspect(InspectionSpec(workload=workload, host_copies=each)) for each in (False, True)
    )
    assert (plain.host_copies, plain.plain_forward) == (None, None)
    assert asked.host_copies is not None
    assert asked.plain_forward is not None
    assert asked.plain_forward.micro_batch_size == 1
    assert asked.plain_forward.time_s > 0
