from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from runners.devices.cpu import CpuDevice
from runners.measure.flops import StepFlops
from runners.measure.utilization import Utilization, utilization


class KnownDevice(CpuDevice):
    """The CPU under another peak."""

    def peak_flops_per_second(self, compute_type: str) -> float | None:
        return {"bfloat16": 1000.0, "tf32": 500.0, "float32": 100.0}.get(compute_type)


LINEAR, CONVOLUTION = nn.Linear(2, 2), nn.Sequential(nn.Conv1d(2, 2, 1))
FLOPS = StepFlops(plain=300, recomputed=100)


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_shares_of_the_peak_without_and_with_recompute() -> None:
    assert utilization(FLOPS, 2.0, KnownDevice(), LINEAR, torch.bfloat16) == Utilization(mfu=0.15, hfu=0.2)


@pytest.mark.parametrize(("precision_name", "peak"), [("highest", 100.0), ("high", 500.0)])
def test_float32_is_counted_against_the_units_that_it_may_use(precision_name: str, peak: float) -> None:
    torch.set_float32_matmul_precision(precision_name)
    found = utilization(FLOPS, 10.0, KnownDevice(), LINEAR, torch.float32)
    assert found is not None
    assert found.mfu == pytest.approx(300 / (10 * peak))


def test_float32_model_that_computes_in_two_types_has_none() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    assert utilization(FLOPS, 10.0, KnownDevice(), CONVOLUTION, torch.float32) is None
    torch.backends.cudnn.allow_tf32 = False
    assert utilization(FLOPS, 10.0, KnownDevice(), CONVOLUTION, torch.float32) is not None


def test_unknown_peak_or_nothing_counted_gives_none() -> None:
    assert utilization(FLOPS, 2.0, CpuDevice(), LINEAR, torch.bfloat16) is None
    assert utilization(StepFlops(0, 0), 2.0, KnownDevice(), LINEAR, torch.bfloat16) is None
