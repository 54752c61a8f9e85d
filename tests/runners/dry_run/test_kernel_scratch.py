"""What is found out of single operations by running them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runners.dry_run.kernel_scratch import KernelScratch, Ran

ATEN = torch.ops.aten


@pytest.fixture(scope="module")
def scratch() -> KernelScratch:
    return KernelScratch()


def ran(scratch: KernelScratch, operator: Any, *args: Any, store_bytes: int | None = None) -> Ran | None:
    """What is found of the operation on tensors without data."""
    return scratch.ran(operator, args, {}, operator(*args), lambda tensor: None if tensor.numel() else store_bytes)


def on_meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_a_convolution_takes_more_than_it_returns(scratch: KernelScratch) -> None:
    image, weight = on_meta(4, 24, 32, 32), on_meta(24, 24, 3, 3)
    found = ran(scratch, ATEN.convolution.default, image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert found is not None
    assert found.output_bytes == (4 * 24 * 32 * 32 * 4,)
    assert found.gained_bytes > 1.5 * found.output_bytes[0]


def test_a_loss_may_stand_in_a_store_as_large_as_its_input(scratch: KernelScratch) -> None:
    found = ran(scratch, ATEN.mse_loss.default, on_meta(64, 512), on_meta(64, 512))
    assert found is not None
    assert found.output_bytes == (64 * 512 * 4,)


def test_element_wise_work_and_small_tensors_are_not_run(scratch: KernelScratch) -> None:
    assert ran(scratch, ATEN.gelu.default, on_meta(64, 512)) is None
    assert ran(scratch, ATEN.mse_loss.default, on_meta(4, 4), on_meta(4, 4)) is None


def test_what_is_too_large_is_named_and_not_run(scratch: KernelScratch) -> None:
    assert ran(scratch, ATEN.cumsum.default, on_meta(2**15, 2**15), 0) is None
    assert scratch.too_large == {"aten.cumsum.default"}


def test_a_store_of_unknown_size_is_not_read_and_one_of_a_known_size_is_as_large(scratch: KernelScratch) -> None:
    parts = [on_meta(64, 512), on_meta(0)]
    assert ran(scratch, ATEN.cat.default, parts) is None
    found = ran(scratch, ATEN.stack.default, [on_meta(64, 512)])
    assert found is not None
    known = ran(scratch, ATEN.cat.default, [on_meta(1024), on_meta(0)], store_bytes=2**17)
    assert known is not None
    assert known.output_bytes == (4 * 1024 + 2**17,)


def test_running_leaves_random_numbers_as_they_were(scratch: KernelScratch) -> None:
    before = torch.get_rng_state()
    ran(scratch, ATEN.mse_loss.default, on_meta(65, 512), on_meta(65, 512))
    assert torch.equal(torch.get_rng_state(), before)
