"""Name in search.yaml -> device."""

from __future__ import annotations

import importlib.util

import torch

from runners.base import WorkloadError
from runners.devices.accelerator import AcceleratorDevice
from runners.devices.base import Device
from runners.devices.cpu import CpuDevice


def open_device(name: str) -> Device:
    """The device of that name; ``auto`` takes the accelerator of this process if there is one, else the CPU.

    Raises:
        WorkloadError: This machine has no such device.
    """
    if name == "auto":
        name = _best_kind()
    if name == "cpu":
        return CpuDevice()
    if name not in ("cuda", "npu"):
        raise WorkloadError(f"runner.device is {name}; known are auto, cpu, cuda and npu")
    if name == "npu" and importlib.util.find_spec("torch_npu") is None:
        raise WorkloadError("runner.device is npu, but torch_npu is not installed here; install it or use cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise WorkloadError("runner.device is cuda, but torch finds no CUDA device here; use cpu or another node")
    return AcceleratorDevice(name)


def _best_kind() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "npu" if importlib.util.find_spec("torch_npu") is not None else "cpu"
