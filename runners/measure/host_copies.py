"""How fast tensors go from a device to its host and back: what offloading takes, apart from what hides it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from runners.devices.base import Device
from runners.measure.copy_times import HostCopies

#: Bytes of one copy: many times a cache, and small beside any model whose activations are worth moving.
_COPY_BYTES = 64 * 2**20
_NUM_REPEATS = 5


def measure_host_copies(device: Device) -> HostCopies:
    """Copies a tensor both ways as `runners.regions.offloaded` does, each the best of a few.

    On a CPU both ways are one and the same: a copy into memory that is asked for anew.
    """
    on_device = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=device.torch_device)
    if device.kind == "cpu":
        copy_s = best_time_s(on_device.clone, device)
        speed = _COPY_BYTES / copy_s
        return HostCopies(to_host_bytes_per_s=speed, from_host_bytes_per_s=speed, run_beside=False)
    on_host = torch.ones(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    to_host_s = best_time_s(lambda: on_host.copy_(on_device, non_blocking=True), device)
    from_host_s = best_time_s(lambda: on_device.copy_(on_host, non_blocking=True), device)
    return HostCopies(
        to_host_bytes_per_s=_COPY_BYTES / to_host_s, from_host_bytes_per_s=_COPY_BYTES / from_host_s, run_beside=True
    )


def best_time_s(work: Callable[[], object], device: Device) -> float:
    """Seconds that it takes on the device, the best of a few: what disturbs one time does not disturb all."""
    times_s = []
    for _ in range(_NUM_REPEATS):
        device.synchronize()
        start = time.perf_counter()
        work()
        device.synchronize()
        times_s.append(time.perf_counter() - start)
    return min(times_s)
