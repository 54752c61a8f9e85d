"""Time in an accelerator's own order of work, by whichever of torch's two interfaces offers it."""

from __future__ import annotations

from typing import Any

import torch


class DeviceClock:
    """Events of one device, and the wait for all that it was given.

    A backend's own module comes first, as for its memory: `torch_npu.npu` had events before `torch.Event` could time
    them there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._backend: Any = torch.get_device_module(device)

    def synchronize(self) -> None:
        synchronize = getattr(self._backend, "synchronize", None) or torch.accelerator.synchronize
        synchronize()

    def mark(self) -> Any:
        """A point in the device's work, for `elapsed_s`."""
        own = getattr(self._backend, "Event", None)
        event = torch.Event(self._device, enable_timing=True) if own is None else own(enable_timing=True)
        event.record()
        return event

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds between two marks; valid once the device is synchronized."""
        return float(start.elapsed_time(end)) / 1000.0
