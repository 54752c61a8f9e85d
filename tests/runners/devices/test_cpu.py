from __future__ import annotations

from typing import Any

import pytest
import torch

from runners.devices.cpu import CpuDevice


class TestLiveBytes:
    @pytest.mark.parametrize(
        ("make", "num_bytes"),
        [
            (lambda: torch.zeros(100), 400),
            (lambda: torch.zeros(100).to_sparse(), 0),
            (lambda: torch.zeros(100, device="meta"), 0),
            (lambda: torch.zeros(0), 0),
            (lambda: torch.nn.Parameter(torch.zeros(100, dtype=torch.float64)), 800),
            (lambda: torch.zeros(10, 10)[2:3].T, 400),
            (lambda: {"nested": [(torch.zeros(100),)]}, 400),
        ],
        ids=["plain", "sparse", "meta", "empty", "parameter", "view of a larger storage", "in containers"],
    )
    def test_every_storage_counts_once(self, make: Any, num_bytes: int) -> None:
        device = CpuDevice()
        before = device.live_bytes()
        kept = [make()]
        assert device.live_bytes() - before == num_bytes
        kept.clear()
        assert device.live_bytes() == before

    def test_fake_tensors_stand_for_no_memory(self) -> None:
        device = CpuDevice()
        before = device.live_bytes()
        with torch._subclasses.FakeTensorMode():
            kept = torch.zeros(100)
        assert device.live_bytes() == before
        assert kept.numel() == 100

    def test_gradients_and_optimizer_states_count(self) -> None:
        device = CpuDevice()
        model = torch.nn.Linear(10, 10, bias=False)
        optimizer = torch.optim.Adam(model.parameters())
        before = device.live_bytes()
        model(torch.ones(1, 10)).sum().backward()
        assert device.live_bytes() - before == 400
        optimizer.step()
        assert device.live_bytes() - before == 400 + 2 * 400 + 4


def test_limit_is_not_enforced_but_measured() -> None:
    with CpuDevice().memory_limit(1):
        assert torch.zeros(1000).sum() == 0


def test_description_names_threads() -> None:
    assert CpuDevice().describe().endswith(f"CPU, {torch.get_num_threads()} threads")
