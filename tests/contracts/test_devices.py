"""What every device must hold. The CPU is tried here; accelerators are tried by tests/device where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runners.devices.base import Device, GradientStorages
from runners.devices.cpu import CpuDevice
from runners.measure.phases import Phase, PhaseSwitch

MIB = 2**20


class HeavyStep:
    """Keeps 8 MiB through each forward, and takes 4 MiB more for a moment."""

    def __init__(self, device: torch.device) -> None:
        self.phases = PhaseSwitch()
        self.runs = 0
        self._device = device
        self._weight = nn.Parameter(torch.zeros(MIB // 4, device=device))
        self._state: torch.Tensor | None = None

    def run(self, on_gradients_ready: Callable[[GradientStorages], None]) -> None:
        self.runs += 1
        with self.phases.phase(Phase.FORWARD):
            kept = torch.zeros(2 * MIB, device=self._device)
            torch.zeros(MIB, device=self._device)
        with self.phases.phase(Phase.BACKWARD):
            (self._weight * kept.mean()).sum().backward()
            del kept
        assert self._weight.grad is not None
        storage = self._weight.grad.untyped_storage()
        on_gradients_ready({storage.data_ptr(): storage.nbytes()})
        with self.phases.phase(Phase.OPTIMIZER):
            if self._state is None:
                self._state = torch.zeros(MIB // 2, device=self._device)
            self._weight.grad = None

    def static_bytes(self) -> dict[str, int]:
        states = 0 if self._state is None else self._state.untyped_storage().nbytes()
        return {"parameters": MIB, "buffers": 0, "optimizer_states": states}

    def gradient_bucket_bytes(self) -> int:
        return 0


class DeviceContract:
    """Inherited by the tests of each device, which say how to open it."""

    @pytest.fixture
    def device(self) -> Device:
        raise NotImplementedError

    def test_describes_itself(self, device: Device) -> None:
        assert device.describe().strip()
        assert "\n" not in device.describe()

    def test_has_memory(self, device: Device) -> None:
        assert device.total_memory_bytes() > 2**28

    def test_time_between_marks_is_that_of_the_work(self, device: Device) -> None:
        matrix = torch.randn(1024, 1024, device=device.torch_device)
        device.synchronize()
        start = device.mark()
        for _ in range(20):
            matrix = matrix @ matrix
            matrix = matrix / matrix.norm()
        end = device.mark()
        device.synchronize()
        assert 0 < device.elapsed_s(start, end) < 60

    def test_live_bytes_rise_and_fall_with_a_tensor(self, device: Device) -> None:
        before = device.live_bytes()
        kept = torch.zeros(MIB, device=device.torch_device)
        views = [kept[:10], kept.view(2, -1)]
        assert device.live_bytes() - before == 4 * MIB
        del kept
        assert device.live_bytes() - before == 4 * MIB
        views.clear()
        assert device.live_bytes() == before

    def test_bytes_held_only_by_a_cycle_are_not_live(self, device: Device) -> None:
        before = device.live_bytes()
        cycle: list[Any] = [torch.zeros(MIB, device=device.torch_device)]
        cycle.append(cycle)
        del cycle
        assert device.live_bytes() == before

    def test_peak_is_measured_over_the_second_of_two_steps(self, device: Device) -> None:
        device.release_cached_memory()
        before = device.live_bytes()
        step = HeavyStep(device.torch_device)
        peak = device.measure_peak(step, live_bytes_before_trial=before)
        assert step.runs == 2
        # 1 MiB of weights, 2 MiB of state from the first step, and 8 + 4 MiB in forward.
        assert 15 * MIB <= peak.allocated_bytes <= 15 * MIB + 4096
        assert peak.capped_bytes >= peak.allocated_bytes
        if peak.by_kind is not None:
            assert sum(peak.by_kind.model_dump().values()) == peak.allocated_bytes
            assert peak.by_kind.optimizer_states == 2 * MIB

    def test_bytes_from_before_the_trial_are_not_its_own(self, device: Device) -> None:
        device.release_cached_memory()
        foreign = torch.zeros(3 * MIB, device=device.torch_device)
        before = device.live_bytes()
        peak = device.measure_peak(HeavyStep(device.torch_device), live_bytes_before_trial=before)
        assert 15 * MIB <= peak.allocated_bytes <= 15 * MIB + 4096
        assert foreign.numel() == 3 * MIB

    def test_refused_allocation_is_out_of_memory(self, device: Device) -> None:
        with pytest.raises(RuntimeError, match="memory") as refused:
            torch.empty(10**13, dtype=torch.uint8, device=device.torch_device)
        assert device.is_out_of_memory(refused.value)

    @pytest.mark.parametrize("error", [MemoryError("no more"), torch.OutOfMemoryError("no more")], ids=repr)
    def test_typed_errors_are_out_of_memory(self, device: Device, error: BaseException) -> None:
        assert device.is_out_of_memory(error)

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("I ran out of memory"),
            RuntimeError("can't allocate memory for this idea"),
            ValueError("DefaultCPUAllocator: can't allocate memory"),
            KeyError("memory"),
        ],
        ids=repr,
    )
    def test_errors_that_only_speak_of_memory_are_not(self, device: Device, error: BaseException) -> None:
        assert not device.is_out_of_memory(error)

    def test_random_state_moves_with_a_draw_and_is_on_the_cpu(self, device: Device) -> None:
        torch.manual_seed(0)
        first = device.rng_state()
        torch.rand(4, device=device.torch_device)
        second = device.rng_state()
        torch.manual_seed(0)
        assert first.device.type == "cpu"
        assert not torch.equal(first, second)
        assert torch.equal(device.rng_state(), first)

    def test_no_limit_limits_nothing(self, device: Device) -> None:
        with device.memory_limit(None):
            assert torch.zeros(MIB, device=device.torch_device).numel() == MIB


class TestCpu(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return CpuDevice()
