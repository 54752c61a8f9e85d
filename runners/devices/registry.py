"""Name in search.yaml -> device."""

from __future__ import annotations

import importlib
import importlib.util

import torch

from runners.base import WorkloadError
from runners.devices.accelerator import AcceleratorDevice
from runners.devices.base import Device
from runners.devices.cpu import CpuDevice

#: Packages that register an accelerator with torch; torch finds them by itself unless TORCH_DEVICE_BACKEND_AUTOLOAD=0.
_BACKEND_PACKAGES = {"npu": "torch_npu"}


def open_device(name: str) -> Device:
    """The device of that name; ``auto`` takes the accelerator of this process if there is one, else the CPU.

    Raises:
        WorkloadError: This machine has no such device.
    """
    if name == "auto":
        name = _best_kind()
    if name == "cpu":
        return CpuDevice()
    _load_backend(name)
    found = _accelerator()
    if found != name:
        raise WorkloadError(
            f"runner.device is {name}, but {_what_is_missing(name)}; torch finds {found or 'no accelerator'} here; "
            f"use {found or 'cpu'} or auto, or another node"
        )
    return AcceleratorDevice(name)


def has_host_apart(name: str) -> bool:
    """Whether the host's memory is another one than the device's: not on a CPU."""
    return (_best_kind() if name == "auto" else name) != "cpu"


def _best_kind() -> str:
    for name in _BACKEND_PACKAGES:
        _load_backend(name)
    return _accelerator() or "cpu"


def _accelerator() -> str | None:
    """The kind of accelerator that this process can use, by torch's name; None where there is none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def _load_backend(name: str) -> None:
    package = _BACKEND_PACKAGES.get(name)
    if package is not None and _accelerator() is None and importlib.util.find_spec(package) is not None:
        importlib.import_module(package)


def _what_is_missing(name: str) -> str:
    package = _BACKEND_PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"{package} is not installed here"
    return f"torch finds no {name} device here"
