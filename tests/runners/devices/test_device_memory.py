"""Accelerators that torch knows and cannot measure, in processes of their own: a process has one for good."""

from __future__ import annotations

import subprocess
import sys

REGISTER = """
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from runners.base import WorkloadError
from runners.devices.registry import open_device

class Module(_DummyBackendModule):
    {figures}

_setup_privateuseone_for_python_backend("half_made", backend_module=Module())
"""
FIGURES = """
    limits = []
    memory_allocated = max_memory_allocated = max_memory_reserved = staticmethod(lambda: 512)
    reset_peak_memory_stats = empty_cache = staticmethod(lambda: None)
    get_device_properties = staticmethod(lambda device: type("Properties", (), {"total_memory": 3 * 2**30 + 7}))
    set_per_process_memory_fraction = staticmethod(lambda fraction, device: Module.limits.append(fraction))
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_backend_without_figures_is_refused_by_name() -> None:
    said = run(
        REGISTER.format(figures="pass")
        + "try:\n    open_device('auto')\nexcept WorkloadError as error:\n    print(error)\n"
    )
    assert said.startswith("runner.device is half_made, but neither torch.half_made nor torch.accelerator of torch ")
    assert "has figures of memory for it" in said


def test_figures_of_the_backends_own_module_are_taken_and_limits_come_out_as_they_went_in() -> None:
    said = run(
        REGISTER.format(figures=FIGURES.strip())
        + "device = open_device('half_made')\n"
        + "total = device.total_memory_bytes()\n"
        + "for limit in [*range(total - 2000, total), 2**20 + 1, 123 * 2**21]:\n"
        + "    with device.memory_limit(limit):\n"
        + "        assert int(Module.limits[-1] * total) == limit, limit\n"
        + "    assert Module.limits[-1] == 1.0\n"
        + "print(device.describe(), device.live_bytes(), total)\n"
    )
    assert said == f"half_made 512 {3 * 2**30 + 7}"
