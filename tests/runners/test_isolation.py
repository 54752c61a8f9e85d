"""What a trial measures does not depend on which trials its process served before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from runners.trial import InspectionSpec, MeasurementSpec, TrialResult, TrialSpec
from runners.worker_agent import WorkerAgent, read_inspection

Trials = Any

#: Figures that are counted, not timed.
COUNTED = ("status", "peak_memory_bytes", "peak_allocated_bytes", "memory_bytes", "recomputed_flops_ratio")


@pytest.fixture
def agent() -> Iterator[WorkerAgent]:
    opened = WorkerAgent({"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}, process_per_trial=False)
    yield opened
    opened.stop()


def run(agent: WorkerAgent, spec: TrialSpec) -> TrialResult:
    return TrialResult.model_validate_json(agent.run(spec.model_dump_json()))


def counted(result: TrialResult) -> dict[str, Any]:
    assert result.verification is not None
    return {**{name: getattr(result, name) for name in COUNTED}, "proof": result.verification.model_dump()}


def meddling(trials: Trials, how: str, micro: int) -> TrialSpec:
    """Without a proof, which would run all 8 samples at once in trials of fewer."""
    unproven = MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1, verify=False)
    maker = trials("surroundings.py:meddling", args={"how": how})
    spec: TrialSpec = maker.spec("block", micro=micro, number=micro, measurement=unproven)
    return spec


def test_what_one_trial_or_inspection_changed_is_put_back_before_the_next(agent: WorkerAgent, trials: Trials) -> None:
    workload = meddling(trials, "settings", 8).workload
    spec = InspectionSpec(workload=workload, micro_batch_size=8, timeout_s=60.0)
    assert read_inspection(agent.inspect(spec.model_dump_json(), 60.0)).shape.block_lists[0].num_blocks == 2
    alone, changer, after = (run(agent, meddling(trials, "settings", micro)) for micro in (4, 8, 4))
    assert [result.reason for result in (alone, changer, after)] == [None] * 3
    assert alone.worker_pid == changer.worker_pid == after.worker_pid
    assert counted(after) == counted(alone)


@pytest.mark.slow
def test_a_process_in_which_a_trial_left_hooks_is_replaced(agent: WorkerAgent, trials: Trials) -> None:
    alone, changer, after = (run(agent, meddling(trials, "hooks", micro)) for micro in (4, 8, 4))
    assert alone.worker_pid == changer.worker_pid != after.worker_pid
    assert counted(after) == counted(alone)


def every_placement(trials: Trials, measurement: MeasurementSpec) -> list[TrialSpec]:
    maker = trials("chance.py:dropout", num_blocks=3)
    reference = maker.policy("none", micro=4)
    return [
        maker.spec(action, micro=micro, number=number, measurement=measurement, reference=reference)
        for number, (action, micro) in enumerate((a, m) for a in ("none", "mlp", "block") for m in (2, 4))
    ]


def in_order(agent: WorkerAgent, specs: Sequence[TrialSpec]) -> list[TrialResult]:
    """Results by trial number, of trials run in the order given and in one process."""
    results = [run(agent, spec) for spec in specs]
    assert len({result.worker_pid for result in results}) == 1
    return sorted(results, key=lambda result: result.trial_number)


def shuffled(specs: Sequence[TrialSpec]) -> list[TrialSpec]:
    return random.Random(5).sample(specs, len(specs))


@pytest.mark.slow
def test_bytes_and_proofs_are_the_same_in_any_order(agent: WorkerAgent, trials: Trials) -> None:
    specs = every_placement(trials, MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1))
    there, back = in_order(agent, specs), in_order(agent, shuffled(specs))
    assert [counted(result) for result in back] == [counted(result) for result in there]
    assert len({result.peak_memory_bytes for result in there}) == len(specs)


@pytest.mark.slow
def test_times_are_the_same_in_any_order_within_their_spread(agent: WorkerAgent, trials: Trials) -> None:
    """Relative to the reference beside them, since the machine itself may change in the meantime."""
    specs = every_placement(trials, MeasurementSpec(warmup_steps=2, min_steps=30, max_steps=100))
    there, back = in_order(agent, specs), in_order(agent, shuffled(specs))
    for one, other in zip(there, back, strict=True):
        spread = ((one.relative_speed_spread or 0.0) ** 2 + (other.relative_speed_spread or 0.0) ** 2) ** 0.5
        difference = abs((one.relative_speed or 0.0) - (other.relative_speed or 0.0))
        assert difference < 5 * spread + 0.05 * (one.relative_speed or 0.0), (one, other)


@pytest.mark.slow
def test_compiled_trials_share_a_process(agent: WorkerAgent, trials: Trials) -> None:
    """What the compiler starts (bars, pools) is gone after each, so that the next begins with what is compiled."""
    maker = trials("chance.py:dropout", options={"compile": "blocks"}, num_blocks=3)
    first, second = (run(agent, maker.spec(action, number=number)) for number, action in enumerate(("none", "block")))
    assert [result.reason for result in (first, second)] == [None, None]
    assert first.worker_pid == second.worker_pid
