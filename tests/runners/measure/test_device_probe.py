from __future__ import annotations

from runners.devices.cpu import CpuDevice
from runners.measure.device_probe import probe_time_s


def test_work_takes_time_and_leaves_nothing_behind() -> None:
    device = CpuDevice()
    before = device.live_bytes()
    assert 1e-6 < probe_time_s(device) < 10
    assert device.live_bytes() == before
