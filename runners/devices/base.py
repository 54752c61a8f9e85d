"""What a trial needs of the hardware it runs on. One small class per kind; nobody else asks which kind it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from runners.measure.phases import PhaseSwitch
from runners.trial import MemoryByKind

#: Storages of the complete gradients: address -> bytes. Asked for right before the update.
GradientStorages = dict[int, int]


@dataclass(frozen=True)
class PeakMemory:
    """The worst moment of one optimizer step.

    Attributes:
        allocated_bytes: Most bytes in live tensors, kernels' scratch included.
        reserved_bytes: Most bytes the caching allocator held; None where the device has no such allocator.
        by_kind: What was alive at the worst moment; None where the device cannot tell.
        may_be_less: Not everything that was given back was seen; another step may be seen better.
    """

    allocated_bytes: int
    reserved_bytes: int | None
    by_kind: MemoryByKind | None
    may_be_less: bool = False

    @property
    def capped_bytes(self) -> int:
        """What a memory cap is tested against: reserved where there is a caching allocator, else allocated."""
        return self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes


class MeasuredStep(Protocol):
    """A step whose memory is measured: it can be run, and says what its tensors are."""

    phases: PhaseSwitch

    def run(self, on_gradients_ready: Callable[[GradientStorages], None]) -> None:
        """Takes one whole optimizer step and reports its gradients' storages right before the update."""

    def static_bytes(self) -> dict[str, int]:
        """Bytes of ``parameters``, ``buffers`` and ``optimizer_states``; each storage counted once."""

    def gradient_bucket_bytes(self) -> int:
        """Bytes that stay allocated for gradients in transit between ranks, and that no Python object refers to."""


class Device(Protocol):
    """One accelerator or the CPU."""

    kind: str
    torch_device: torch.device

    def describe(self) -> str:
        """The hardware's name, for people."""

    def total_memory_bytes(self) -> int:
        """Memory that a percentage cap is a share of."""

    def peak_flops_per_second(self, compute_type: str) -> float | None:
        """Dense peak in products of that type (``tf32`` is float32 on tensor cores); None where it is not known."""

    def synchronize(self) -> None:
        """Waits until all work given to the device is done."""

    def mark(self) -> Any:
        """A point in the device's own order of work, for `elapsed_s`."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds between two marks; valid once the device is synchronized."""

    def live_bytes(self) -> int:
        """Bytes in live tensors now."""

    def measure_peak(self, step: MeasuredStep, *, live_bytes_before_trial: int) -> PeakMemory:
        """Runs two steps and measures the second: optimizer states exist then, and the first one's leftovers are known.

        Args:
            live_bytes_before_trial: Bytes that are not the trial's; they are taken off the peak.
        """

    def memory_limit(self, limit_bytes: int | None) -> AbstractContextManager[None]:
        """Within the context the device refuses allocations beyond the limit, where it can; None limits nothing."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True only for the device's or the host's own refusal of an allocation."""

    def rng_state(self) -> torch.Tensor:
        """State of the device's random generator, on the CPU; shape (num_bytes,)."""

    def release_cached_memory(self) -> None:
        """Gives cached blocks back, so that the next trial starts as the first did."""
