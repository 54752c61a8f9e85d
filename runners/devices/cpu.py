"""The CPU as a device: exact peaks from the allocator's own records, wall-clock times."""

from __future__ import annotations

import gc
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from runners.devices.base import GradientStorages, MeasuredStep, PeakMemory
from runners.measure.allocation_trace import AllocationRecorder, bytes_alive_by_kind
from runners.measure.phases import Phase
from runners.parallel.local_part import local_part
from runners.trial import MemoryByKind

#: torch has no error type of its own for a refused CPU allocation; these two parts stand in every such message
#: (c10/core/impl/alloc_cpu.cpp, torch 2.8 to 2.13). Drop this when torch.OutOfMemoryError is raised there too.
_REFUSED_ALLOCATION = ("DefaultCPUAllocator", "can't allocate memory")


class CpuDevice:
    """The host's processor and memory."""

    kind = "cpu"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def describe(self) -> str:
        return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"

    def total_memory_bytes(self) -> int:
        return int(psutil.virtual_memory().total)

    def peak_flops_per_second(self, compute_type: str) -> float | None:
        """Not known: clocks and vector units vary with the load and within one name."""
        return None

    def synchronize(self) -> None:
        """Nothing to wait for: the CPU runs its work at once."""

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    def live_bytes(self) -> int:
        """Bytes of all storages that a Python tensor refers to, each counted once."""
        return sum(self._live_storages().values())

    def _live_storages(self) -> dict[int, int]:
        gc.collect()
        sizes: dict[int, int] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Looking at every object touches deprecated ones, which warn.
            for candidate in gc.get_objects():
                if not isinstance(candidate, torch.Tensor):
                    continue
                # A gradient that nobody looked at yet is no Python object of its own.
                for whole in (candidate, candidate.grad if candidate.is_leaf else None):
                    tensor = None if whole is None else local_part(whole)
                    if tensor is not None and tensor.device.type == "cpu" and _has_storage(tensor):
                        storage = tensor.untyped_storage()
                        sizes[storage.data_ptr()] = storage.nbytes()
        return sizes

    def measure_peak(self, step: MeasuredStep, *, live_bytes_before_trial: int) -> PeakMemory:
        recorder = AllocationRecorder()
        gradients: GradientStorages = {}
        with recorder.recording(), step.phases.watched_by(recorder):
            step.run(lambda _: None)
            live_storages = self._live_storages()
            with recorder.interval("measured"):
                step.run(gradients.update)
        trace = recorder.trace()
        start_ns = trace.named("measured")[0].start_ns
        # What a graph keeps is no Python object. Where the model holds on to one, only the first step's record tells.
        live_storages |= {block.address: block.num_bytes for block in trace.alive_at(start_ns)}
        measured = trace.since(start_ns)
        gained, peak_ns = measured.peak()
        buckets = step.gradient_bucket_bytes()
        peak = sum(live_storages.values()) - live_bytes_before_trial + buckets + gained
        static = step.static_bytes()
        complete_ns = measured.named(Phase.OPTIMIZER.value)[-1].start_ns
        alive = bytes_alive_by_kind(measured, peak_ns, gradients, complete_ns)
        alive["gradients"] += buckets
        # Inputs and whatever else the model keeps between steps are held for backward as activations are.
        alive["activations"] = peak - sum(static.values()) - alive["gradients"] - alive["temporary"]
        may_be_less = trace.lacks_frees(self._live_storages())
        return PeakMemory(peak, None, MemoryByKind(**static, **alive), may_be_less)

    @contextmanager
    def memory_limit(self, limit_bytes: int | None) -> Iterator[None]:
        """The CPU allocator has no limit to set: a trial over the cap is measured whole and found infeasible."""
        yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        return isinstance(error, RuntimeError) and all(part in str(error) for part in _REFUSED_ALLOCATION)

    def rng_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def release_cached_memory(self) -> None:
        gc.collect()


def _has_storage(tensor: torch.Tensor) -> bool:
    """False for tensors that stand for no memory of their own, such as fake and sparse ones."""
    return tensor.layout == torch.strided and not isinstance(tensor, torch._subclasses.FakeTensor)
