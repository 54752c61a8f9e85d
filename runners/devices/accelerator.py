"""Any accelerator that torch drives: NVIDIA (cuda), Ascend (npu, by torch_npu), or another that registers itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from runners.devices.base import MeasuredStep, PeakMemory
from runners.devices.device_clock import DeviceClock
from runners.devices.device_memory import DeviceMemory
from runners.devices.peak_flops import peak_flops_per_second


class AcceleratorDevice:
    """The current device of one accelerator type; figures come from its caching allocator.

    Raises:
        WorkloadError: torch's interface to this accelerator lacks a figure that a trial cannot do without.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.torch_device = torch.device(kind, torch.accelerator.current_device_index())
        self._backend = torch.get_device_module(kind)
        self._memory = DeviceMemory(self.torch_device)
        self._clock = DeviceClock(self.torch_device)

    def describe(self) -> str:
        name = getattr(self._backend, "get_device_name", None)
        return self.kind if name is None else str(name(self.torch_device))

    def total_memory_bytes(self) -> int:
        return self._memory.total_bytes()

    def peak_flops_per_second(self, compute_type: str) -> float | None:
        return peak_flops_per_second(self.describe(), compute_type)

    def synchronize(self) -> None:
        self._clock.synchronize()

    def mark(self) -> Any:
        return self._clock.mark()

    def elapsed_s(self, start: Any, end: Any) -> float:
        return self._clock.elapsed_s(start, end)

    def live_bytes(self) -> int:
        gc.collect()
        return self._memory.allocated_bytes()

    def measure_peak(self, step: MeasuredStep, *, live_bytes_before_trial: int) -> PeakMemory:
        # Blocks that the proof left in the cache are reserved, but training alone would not reserve them.
        self.release_cached_memory()
        step.run(lambda _: None)
        self.synchronize()
        self._memory.reset_peak()
        step.run(lambda _: None)
        self.synchronize()
        allocated = self._memory.peak_allocated_bytes() - live_bytes_before_trial
        return PeakMemory(allocated, self._memory.peak_reserved_bytes(), None)

    @contextmanager
    def memory_limit(self, limit_bytes: int | None) -> Iterator[None]:
        """Where the accelerator has no limit to set, a trial over the cap is measured whole and found infeasible."""
        if limit_bytes is None:
            yield
            return
        self._memory.set_limit(limit_bytes)
        try:
            yield
        finally:
            self._memory.set_limit(None)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError | MemoryError)

    def rng_state(self) -> torch.Tensor:
        state: torch.Tensor = self._backend.get_rng_state()
        return state.cpu()

    def release_cached_memory(self) -> None:
        gc.collect()
        self._memory.empty_cache()
