"""Any accelerator that torch drives through `torch.accelerator`: NVIDIA (cuda) and Ascend (npu, with torch_npu).

Nothing here has been run on such hardware yet; the contract tests in tests/device cover it where there is one.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from runners.devices.base import MeasuredStep, PeakMemory


class AcceleratorDevice:
    """The current device of one accelerator type; figures come from its caching allocator."""

    def __init__(self, kind: str) -> None:
        if kind == "npu":
            importlib.import_module("torch_npu")  # Registers the npu backend with torch.
        self.kind = kind
        self._backend: Any = torch.get_device_module(kind)
        self.torch_device = torch.device(kind, torch.accelerator.current_device_index())

    def describe(self) -> str:
        return str(self._backend.get_device_name(self.torch_device))

    def total_memory_bytes(self) -> int:
        return int(self._backend.get_device_properties(self.torch_device).total_memory)

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    def mark(self) -> torch.Event:
        event = torch.Event(self.torch_device, enable_timing=True)
        event.record()
        return event

    def elapsed_s(self, start: torch.Event, end: torch.Event) -> float:
        return float(start.elapsed_time(end)) / 1000.0

    def live_bytes(self) -> int:
        gc.collect()
        return int(torch.accelerator.memory_allocated())

    def measure_peak(self, step: MeasuredStep, *, live_bytes_before_trial: int) -> PeakMemory:
        # Blocks that the proof left in the cache are reserved, but training alone would not reserve them.
        self.release_cached_memory()
        step.run(lambda _: None)
        self.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        step.run(lambda _: None)
        self.synchronize()
        allocated = int(torch.accelerator.max_memory_allocated()) - live_bytes_before_trial
        return PeakMemory(allocated, int(torch.accelerator.max_memory_reserved()), None)

    @contextmanager
    def memory_limit(self, limit_bytes: int | None) -> Iterator[None]:
        if limit_bytes is None:
            yield
            return
        fraction = min(1.0, limit_bytes / self.total_memory_bytes())
        self._backend.set_per_process_memory_fraction(fraction, self.torch_device)
        try:
            yield
        finally:
            self._backend.set_per_process_memory_fraction(1.0, self.torch_device)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError | MemoryError)

    def rng_state(self) -> torch.Tensor:
        state: torch.Tensor = self._backend.get_rng_state()
        return state.cpu()

    def release_cached_memory(self) -> None:
        gc.collect()
        torch.accelerator.empty_cache()
