"""Figures and limit of an accelerator's caching allocator, whichever of torch's two interfaces offers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runners.base import WorkloadError


class DeviceMemory:
    """The allocator of one device.

    A backend's own module comes first: `torch.cuda` and `torch_npu.npu` have had these functions for years, while
    `torch.accelerator` has them from torch 2.9 on, and only for backends whose allocator takes part.

    Raises:
        WorkloadError: Neither interface has a figure.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._backend: Any = torch.get_device_module(device)
        self._allocated = self._function("memory_allocated")
        self._peak_allocated = self._function("max_memory_allocated")
        self._peak_reserved = self._function("max_memory_reserved")
        self._reset_peak = self._function("reset_peak_memory_stats")
        self._empty_cache = self._function("empty_cache")
        try:
            self.allocated_bytes()
        except RuntimeError as error:
            raise self._unknown("figures of memory") from error

    def allocated_bytes(self) -> int:
        """Bytes in live tensors now."""
        return int(self._allocated())

    def peak_allocated_bytes(self) -> int:
        """Most bytes in live tensors since `reset_peak`."""
        return int(self._peak_allocated())

    def peak_reserved_bytes(self) -> int:
        """Most bytes that the allocator held since `reset_peak`."""
        return int(self._peak_reserved())

    def reset_peak(self) -> None:
        self._reset_peak()

    def empty_cache(self) -> None:
        self._empty_cache()

    def total_bytes(self) -> int:
        """Memory of the whole device.

        Raises:
            WorkloadError: The backend does not tell.
        """
        properties = getattr(self._backend, "get_device_properties", None)
        if properties is not None:
            return int(properties(self._device).total_memory)
        _, total = self._function("get_memory_info")()
        return int(total)

    def set_limit(self, limit_bytes: int | None) -> None:
        """Makes the allocator refuse what would take it beyond the limit; None opens the device again.

        Without effect where the backend knows no such limit.
        """
        set_fraction = getattr(self._backend, "set_per_process_memory_fraction", None)
        if set_fraction is None:
            return
        # The allocator multiplies the fraction back and cuts it to whole bytes: half a byte more comes out as the
        # limit, where the bare quotient could come out one byte short and refuse the last block that fits.
        fraction = 1.0 if limit_bytes is None else min(1.0, (limit_bytes + 0.5) / self.total_bytes())
        set_fraction(fraction, self._device)

    def _function(self, name: str) -> Callable[[], Any]:
        for interface in (self._backend, torch.accelerator):
            function: Callable[[], Any] | None = getattr(interface, name, None)
            if function is not None:
                return function
        raise self._unknown(name)

    def _unknown(self, what: str) -> WorkloadError:
        return WorkloadError(
            f"runner.device is {self._device.type}, but neither torch.{self._device.type} nor torch.accelerator of "
            f"torch {torch.__version__} has {what} for it; a newer torch or backend is needed to measure memory there"
        )
