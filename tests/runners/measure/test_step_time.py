from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, cycle, repeat
from typing import Any

import pytest
import torch

from runners.apply_policy import apply_policy
from runners.devices.base import MeasuredStep, PeakMemory
from runners.devices.cpu import CpuDevice
from runners.measure.phases import Phase, PhaseSwitch
from runners.measure.spread import Center, median_standard_error
from runners.measure.step_time import PhaseClock, StepTimes, measure_step_times, time_once
from runners.rig import Rig
from runners.trial import MeasurementSpec, WorkloadSpec
from runners.workloads.load import load_workload
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region


class ScriptedDevice:
    """A device whose clock moves only when it is told to, and whose marks count only once it is synchronized."""

    kind = "cpu"
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.synchronized_until_s = 0.0

    def passes(self, seconds: float) -> None:
        self.now_s += seconds

    def synchronize(self) -> None:
        self.synchronized_until_s = self.now_s

    def mark(self) -> float:
        return self.now_s

    def elapsed_s(self, start: float, end: float) -> float:
        assert end <= self.synchronized_until_s, "read before the device was synchronized"
        return end - start

    def describe(self) -> str:
        return "scripted"

    def total_memory_bytes(self) -> int:
        return 0

    def live_bytes(self) -> int:
        return 0

    def measure_peak(self, step: MeasuredStep, *, live_bytes_before_trial: int) -> PeakMemory:
        return PeakMemory(0, None, None)

    @contextmanager
    def memory_limit(self, limit_bytes: int | None) -> Iterator[None]:
        yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        return False

    def rng_state(self) -> torch.Tensor:
        return torch.zeros(0)

    def release_cached_memory(self) -> None:
        pass


def measure(
    step_times_s: list[float],
    reference_times_s: list[float] | None = None,
    *,
    give_up: Callable[[], bool] = lambda: False,
    **measurement: Any,
) -> StepTimes:
    """Steps take the given seconds, the last of them for ever after."""
    device, phases = ScriptedDevice(), PhaseSwitch()
    steps = chain(step_times_s, repeat(step_times_s[-1]))

    def reference_timer(times_s: list[float]) -> Callable[[], float]:
        references = chain(times_s, repeat(times_s[-1]))
        return lambda: time_once(lambda: device.passes(next(references)), device).time_s

    return measure_step_times(
        lambda: device.passes(next(steps)),
        None if reference_times_s is None else reference_timer(reference_times_s),
        phases=phases,
        device=device,
        measurement=MeasurementSpec(**measurement),
        give_up=give_up,
    )


class TestLengthOfTheSeries:
    def test_steady_steps_end_at_the_least_number(self) -> None:
        assert measure([2.0], min_steps=5, max_steps=50).step_times_s == (2.0,) * 5

    def test_noisy_steps_go_on_to_the_most(self) -> None:
        assert len(measure([1.0, 2.0] * 20, min_steps=4, max_steps=12).step_times_s) == 12

    def test_noisy_steps_end_as_soon_as_the_spread_of_their_median_is_small_enough(self) -> None:
        rng = random.Random(0)
        times = measure([rng.gauss(1.0, 0.1) for _ in range(300)], min_steps=4, max_steps=300, relative_spread=0.03)
        assert 4 < len(times.step_times_s) < 300
        assert median_standard_error(times.step_times_s) <= 0.03 * statistics.median(times.step_times_s)
        before = times.step_times_s[:-1]
        assert median_standard_error(before) > 0.03 * statistics.median(before)

    def test_giving_up_ends_the_series_but_not_before_the_least_number(self) -> None:
        assert len(measure([1.0, 2.0] * 20, give_up=lambda: True, min_steps=6, max_steps=50).step_times_s) == 6

    def test_single_step_is_allowed_and_has_no_spread(self) -> None:
        times = measure([3.0], min_steps=1, max_steps=1)
        assert times.step_times_s == (3.0,)
        assert math.isnan(median_standard_error(times.step_times_s))


class TestReference:
    def test_each_step_is_compared_with_the_reference_steps_around_it(self) -> None:
        times = measure([2.0, 4.0], [1.0, 3.0, 5.0], min_steps=2, max_steps=2)
        assert times.reference_times_s == (1.0, 3.0, 5.0)
        assert times.relative_speed() == Center(1.0, 0.0)

    def test_without_a_reference_there_is_no_relative_speed(self) -> None:
        assert measure([2.0, 4.0], min_steps=2, max_steps=2).relative_speed() is None

    def test_machine_that_slows_down_leaves_the_relative_speed_alone(self) -> None:
        slowing = [1.1**n for n in range(40)]
        times = measure(slowing, [2.0 * factor for factor in slowing], min_steps=5, max_steps=40)
        assert len(times.step_times_s) == 5
        assert times.relative_speed().value == pytest.approx(2.1)

    def test_spread_of_the_relative_speed_decides_where_there_is_a_reference(self) -> None:
        assert len(measure([1.0], [1.0, 3.0, 1.0, 9.0] * 9, min_steps=4, max_steps=9).step_times_s) == 9


class TestDrift:
    def test_is_the_later_half_of_the_reference_over_the_earlier_one(self) -> None:
        times = measure([1.0], [1.0, 1.0, 9.0, 3.0, 3.0], min_steps=4, max_steps=4)
        assert times.reference_times_s == (1.0, 1.0, 9.0, 3.0, 3.0)
        assert times.reference_drift() == 3.0

    def test_needs_a_reference(self) -> None:
        assert measure([1.0], min_steps=4, max_steps=4).reference_drift() is None


class TestPhaseClock:
    def test_recompute_is_taken_out_of_backward_and_micro_batches_add_up(self) -> None:
        device, phases = ScriptedDevice(), PhaseSwitch()

        def step() -> None:
            for _ in range(2):
                with phases.phase(Phase.FORWARD):
                    device.passes(1.0)
                with phases.phase(Phase.BACKWARD):
                    device.passes(2.0)
                    with phases.recomputing("blocks.1"):
                        device.passes(0.25)
                    with phases.recomputing("blocks.0"):
                        device.passes(0.5)
            with phases.phase(Phase.OPTIMIZER):
                device.passes(0.125)

        measurement = MeasurementSpec(min_steps=3, max_steps=3)
        times = measure_step_times(step, None, phases=phases, device=device, measurement=measurement)
        assert parts_of(times) == pytest.approx((2.0, 4.0, 1.5, 0.125))
        assert times.step_times_s == (7.625,) * 3

    def test_parts_add_up_to_the_median_step_whichever_part_the_machine_slowed(self) -> None:
        """Each step is slowed in another part: the medians of the parts know nothing of it, those of the steps do."""
        device, phases = ScriptedDevice(), PhaseSwitch()
        slowed = cycle([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER])

        def step() -> None:
            slow = next(slowed)
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
                with phases.phase(phase):
                    device.passes(2.0 if phase is slow else 1.0)

        measurement = MeasurementSpec(min_steps=3, max_steps=3)
        times = measure_step_times(step, None, phases=phases, device=device, measurement=measurement)
        assert times.step_times_s == (4.0,) * 3
        assert sum(parts_of(times)) == pytest.approx(4.0)

    def test_what_lies_between_the_parts_is_given_to_none(self) -> None:
        device, phases = ScriptedDevice(), PhaseSwitch()

        def step() -> None:
            with phases.phase(Phase.FORWARD):
                device.passes(3.0)
            device.passes(1.0)

        measurement = MeasurementSpec(min_steps=3, max_steps=3)
        times = measure_step_times(step, None, phases=phases, device=device, measurement=measurement)
        assert parts_of(times) == pytest.approx((3.0, 0.0, 0.0, 0.0))

    def test_region_rebuilt_inside_another_is_counted_once(self) -> None:
        device, phases = ScriptedDevice(), PhaseSwitch()
        clock = PhaseClock(device)
        with phases.watched_by(clock), phases.phase(Phase.BACKWARD), phases.recomputing("outer"):
            device.passes(1.0)
            with phases.recomputing("inner"):
                device.passes(0.5)
            device.passes(0.25)
        device.synchronize()
        clock.end_step(1.75)
        assert clock.split(1.75).recompute_s == 1.75
        assert clock.split(1.75).backward_s == 0.0
        assert phases.last_recomputed_region == "inner"

    def test_rebuild_that_is_left_early_is_counted_to_where_it_was_left(self) -> None:
        device, phases = ScriptedDevice(), PhaseSwitch()
        clock = PhaseClock(device)

        def rebuild() -> None:
            with phases.recomputing("block"):
                device.passes(1.0)
                raise StopIteration("all is back")

        with phases.watched_by(clock), phases.phase(Phase.BACKWARD):
            for _ in range(2):
                with pytest.raises(StopIteration, match="all is back"):
                    rebuild()
        device.synchronize()
        clock.end_step(4.0)
        assert clock.split(4.0).recompute_s == 2.0

    def test_nobody_watching_costs_nothing_and_records_nothing(self) -> None:
        phases = PhaseSwitch()
        clock = PhaseClock(ScriptedDevice())
        with phases.watched_by(clock):
            pass
        with phases.phase(Phase.FORWARD):
            pass
        clock.end_step(1.0)
        assert clock.split(1.0).forward_s == 0.0


def parts_of(times: StepTimes) -> tuple[float, float, float, float]:
    parts = times.phases
    return parts.forward_s, parts.backward_s, parts.recompute_s, parts.optimizer_s


GPT_ARGS = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256}
REAL_MODELS: dict[str, tuple[WorkloadSpec, str, dict[str, str]]] = {
    "our GPT": (
        WorkloadSpec(model_factory="runners.workloads.gpt:gpt", model_args=GPT_ARGS, sequence_length=64),
        "blocks",
        {"attention": "attn", "mlp": "mlp"},
    ),
    "GPT-2": (
        WorkloadSpec(model_factory="huggingface:gpt2", model_args=GPT_ARGS, sequence_length=64),
        "transformer.h",
        {"attention": "attn", "mlp": "mlp"},
    ),
    "T5": (
        WorkloadSpec(
            model_factory="huggingface:t5",
            model_args={"num_layers": 4, "d_model": 64, "d_kv": 16, "d_ff": 256, "num_heads": 4, "vocab_size": 256},
            sequence_length=64,
        ),
        "encoder.block",
        {"attention": "layer.0", "mlp": "layer.1"},
    ),
}
real_models = pytest.mark.parametrize("model", REAL_MODELS.values(), ids=REAL_MODELS.keys())


class TestRealStep:
    @real_models
    @pytest.mark.parametrize("micro", [8, 1], ids=["accumulation 1", "accumulation 8"])
    @pytest.mark.parametrize("action", ["none", "block", "attention+mlp", "segment"])
    def test_parts_add_up_to_the_step(
        self, model: tuple[WorkloadSpec, str, dict[str, str]], action: str, micro: int
    ) -> None:
        spec, path, units = model
        if action == "segment" and path == "encoder.block":
            pytest.skip("a T5 block receives what the one before it has computed, so its blocks cannot be one segment")
        device, workload = CpuDevice(), load_workload(spec)
        region = Region(0, 3, action, segment_size=2 if action == "segment" else None)
        placement = BlockListPlacement(path, 4, tuple(units.items()), (region,))
        rig = Rig(workload, spec, device, RecomputePolicy(BatchShape(micro, 8 // micro, 1, 8), (placement,)))
        batches = [workload.make_batch(micro) for _ in range(8 // micro)]
        rig.step.run(batches)
        measurement = MeasurementSpec(min_steps=3, max_steps=3)
        times = measure_step_times(
            lambda: rig.step.run(batches), None, phases=rig.phases, device=device, measurement=measurement
        )
        step_time_s = statistics.median(times.step_times_s)
        forward_s, backward_s, recompute_s, optimizer_s = parts_of(times)
        assert 0.97 * step_time_s <= sum(parts_of(times)) <= 1.0001 * step_time_s
        assert min(forward_s, backward_s, optimizer_s) > 0
        assert (recompute_s > 0) == (action != "none")

    @pytest.mark.slow
    def test_recompute_takes_as_long_as_the_forward_of_what_is_rebuilt(self) -> None:
        """Blocks large enough for what torch itself adds to each of them not to matter."""
        args = {"n_layer": 3, "n_embd": 256, "n_head": 4, "vocab_size": 64, "dropout": 0.0}
        spec = WorkloadSpec(model_factory="runners.workloads.gpt:gpt", model_args=args, sequence_length=256)
        device, workload = CpuDevice(), load_workload(spec)
        placement = BlockListPlacement("blocks", 3, (), (Region(0, 2, "block"),))
        rig = Rig(workload, spec, device, RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,)))
        batches = [workload.make_batch(2)]
        x = torch.randn(2, 256, 256, requires_grad=True)
        ratios = []
        for _ in range(7):
            clock = PhaseClock(device)
            with rig.phases.watched_by(clock):
                rig.step.run(batches)
            clock.end_step(1.0)
            recompute_s = clock.split(1.0).recompute_s
            with rig.placed(None):
                forward_s = sum(time_once(lambda: block(x), device).time_s for block in rig.model.blocks)  # noqa: B023  # called at once
            ratios.append(recompute_s / forward_s)
        assert 0.8 < statistics.median(ratios) < 1.25

    def test_model_that_recomputes_by_itself_inside_a_region_is_counted_once(self, trials: Any) -> None:
        maker = trials("operators.py:recomputes_itself", num_blocks=3)
        workload = load_workload(maker.workload())
        model, phases, device = workload.build_model(), PhaseSwitch(), CpuDevice()
        apply_policy(model, maker.policy("block", micro=8), observer=phases)
        clock = PhaseClock(device)
        with phases.watched_by(clock):
            loss = model(**workload.make_batch(8))
            with phases.phase(Phase.BACKWARD):
                loss.backward()
        clock.end_step(1.0)
        assert clock.split(1.0).recompute_s > 0
        assert clock.split(1.0).backward_s > 0
