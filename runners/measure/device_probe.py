"""A fixed piece of work, timed: tells a device that is slower than others of its kind, whatever the trials on it do."""

from __future__ import annotations

import time

import torch

from runners.devices.base import Device

#: Elements, and passes over them. Small enough for a cache, so that it is the device's clock that is seen.
_CPU_WORK = (2**16, 8)
_ACCELERATOR_WORK = (2**20, 50)
_REPEATS = 5


def probe_time_s(device: Device) -> float:
    """Seconds that the device takes for it, the best of a few: what disturbs one of them does not disturb all.

    Element by element, since libraries for products keep scratch memory that a trial after this would be charged with.
    """
    num_elements, num_passes = _CPU_WORK if device.kind == "cpu" else _ACCELERATOR_WORK
    values = torch.ones(num_elements, device=device.torch_device)
    times_s = []
    for _ in range(_REPEATS):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(num_passes):
            values.tanh_()
        device.synchronize()
        times_s.append(time.perf_counter() - start)
    return min(times_s)
