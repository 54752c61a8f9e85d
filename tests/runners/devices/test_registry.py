from __future__ import annotations

import importlib.util

import pytest
import torch

from runners.base import WorkloadError
from runners.devices.cpu import CpuDevice
from runners.devices.registry import open_device

HAS_CUDA = torch.cuda.is_available()
HAS_NPU = importlib.util.find_spec("torch_npu") is not None


def test_cpu_by_name() -> None:
    assert isinstance(open_device("cpu"), CpuDevice)


@pytest.mark.skipif(HAS_CUDA or HAS_NPU, reason="this machine has an accelerator")
def test_auto_is_the_cpu_where_there_is_no_accelerator() -> None:
    assert isinstance(open_device("auto"), CpuDevice)


@pytest.mark.skipif(HAS_CUDA, reason="this machine has a CUDA device")
def test_missing_cuda_is_refused_with_a_way_out() -> None:
    with pytest.raises(WorkloadError, match=r"runner\.device is cuda, but torch finds no cuda device here; .* use cpu"):
        open_device("cuda")


@pytest.mark.skipif(HAS_NPU, reason="this machine has torch_npu")
def test_missing_npu_is_refused_with_a_way_out() -> None:
    with pytest.raises(WorkloadError, match=r"runner\.device is npu, but torch_npu is not installed here"):
        open_device("npu")


@pytest.mark.skipif(HAS_CUDA or HAS_NPU, reason="this machine has an accelerator")
def test_device_that_torch_does_not_find_is_refused_with_what_it_finds() -> None:
    with pytest.raises(
        WorkloadError, match=r"runner\.device is tpu, .* torch finds no accelerator here; use cpu or auto"
    ):
        open_device("tpu")
