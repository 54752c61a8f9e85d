"""The device contract on real hardware, and what only an accelerator can do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.devices.base import Device
from runners.devices.device_memory import DeviceMemory
from runners.devices.registry import open_device
from runners.trial import MeasurementSpec, TrialSpec, TrialStatus, Verdict, WorkloadSpec
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_contract", Path(__file__).parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DeviceContract: Any = _load("contracts/test_devices.py").DeviceContract
MIB = 2**20


class AcceleratorContract(DeviceContract):  # type: ignore[misc]  # loaded from a file, so mypy sees Any
    """What holds on every accelerator on top of the common contract."""

    @pytest.fixture
    def device(self, device_kind: str) -> Device:
        return open_device(device_kind)

    def test_is_what_auto_takes(self, device: Device, device_kind: str) -> None:
        assert open_device("auto").kind == device.kind == device_kind
        assert device.torch_device.type == device_kind

    def test_other_kinds_are_refused_with_this_one(self, device: Device) -> None:
        other = "npu" if device.kind == "cuda" else "cuda"
        with pytest.raises(WorkloadError, match=f"torch finds {device.kind} here; use {device.kind} or auto"):
            open_device(other)

    def test_reserved_bytes_are_what_the_cap_is_tested_against(self, device: Device) -> None:
        kept = torch.zeros(MIB, device=device.torch_device)

        class Step:
            from runners.measure.phases import PhaseSwitch

            phases = PhaseSwitch()

            def run(self, on_gradients_ready: Any) -> None:
                on_gradients_ready({})
                (kept * 2).sum()

            def static_bytes(self) -> dict[str, int]:
                return {"parameters": 0, "buffers": 0, "optimizer_states": 0}

            def gradient_bucket_bytes(self) -> int:
                return 0

        peak = device.measure_peak(Step(), live_bytes_before_trial=0)
        assert peak.reserved_bytes is not None
        assert peak.capped_bytes == peak.reserved_bytes >= peak.allocated_bytes

    def test_limit_refuses_what_is_beyond_it_and_is_lifted_afterwards(self, device: Device) -> None:
        device.release_cached_memory()
        limit = device.live_bytes() + 64 * MIB
        with device.memory_limit(limit), pytest.raises(torch.OutOfMemoryError, match="memory") as refused:
            torch.zeros(128 * MIB, device=device.torch_device, dtype=torch.uint8)
        assert device.is_out_of_memory(refused.value)
        assert torch.zeros(128 * MIB, device=device.torch_device, dtype=torch.uint8).numel() == 128 * MIB

    def test_limit_is_exact_to_the_block(self, device: Device) -> None:
        """What was reserved without a limit is reserved again under one of as many bytes, however odd the fraction."""
        memory = DeviceMemory(device.torch_device)
        for num_blocks in range(1, 6):
            device.release_cached_memory()
            memory.reset_peak()
            kept = [torch.zeros(24 * MIB, device=device.torch_device, dtype=torch.uint8) for _ in range(num_blocks)]
            reserved = memory.peak_reserved_bytes()
            kept.clear()
            device.release_cached_memory()
            with device.memory_limit(reserved):
                kept = [torch.zeros(24 * MIB, device=device.torch_device, dtype=torch.uint8) for _ in range(num_blocks)]
                with pytest.raises(torch.OutOfMemoryError, match="memory"):
                    torch.zeros(24 * MIB, device=device.torch_device, dtype=torch.uint8)
            kept.clear()

    @pytest.mark.parametrize("action", ["none", "block", "attention+mlp"])
    def test_trial_of_a_small_gpt_matches_and_fits_its_own_peak(
        self, device: Device, action: str, is_stand_in: bool, record_property: Callable[[str, object], None]
    ) -> None:
        from runners.worker import TrialWorker

        width = length = 32 if is_stand_in else 256
        args = {"n_layer": 4, "n_embd": width, "n_head": 4, "vocab_size": 1000, "max_sequence_length": length}
        workload = WorkloadSpec(
            model_factory="runners.workloads.gpt:gpt", model_args=args, sequence_length=length, device=device.kind
        )
        placement = BlockListPlacement("blocks", 4, (("attention", "attn"), ("mlp", "mlp")), (Region(0, 3, action),))
        policy = RecomputePolicy(BatchShape.split(global_batch_size=8, micro_batch_size=4), (placement,))
        measurement = MeasurementSpec(min_steps=3, max_steps=5)
        worker = TrialWorker()
        result = worker.run(TrialSpec(trial_number=0, policy=policy, workload=workload, measurement=measurement))
        assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
        assert result.verification is not None
        assert result.verification.verdict is Verdict.MATCH
        assert result.peak_memory_bytes == result.peak_reserved_bytes
        for name in (
            "tokens_per_second",
            "peak_reserved_bytes",
            "peak_allocated_bytes",
            "mfu",
            "hfu",
            "device_probe_s",
        ):
            record_property(name, getattr(result, name))
        if result.mfu is not None and result.hfu is not None:
            assert 0 < result.mfu <= result.hfu < 1
        capped = TrialSpec(
            trial_number=1,
            policy=policy,
            workload=workload,
            measurement=measurement,
            memory_cap_bytes=result.peak_reserved_bytes,
        )
        assert worker.run(capped).status is TrialStatus.COMPLETED


@pytest.mark.cuda
class TestCuda(AcceleratorContract):
    """NVIDIA's."""


@pytest.mark.npu
class TestNpu(AcceleratorContract):
    """Ascend's."""


@pytest.mark.accelerator
class TestOther(AcceleratorContract):
    """Any other one that torch finds."""
