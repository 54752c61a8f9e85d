"""Which accelerator a test of this folder gets, and how large a model it can be given."""

from __future__ import annotations

import os

import pytest
import torch

KINDS = ("cuda", "npu")
OTHER = "accelerator"


@pytest.fixture
def device_kind(request: pytest.FixtureRequest) -> str:
    """The accelerator's kind; the test is skipped where torch finds none of the kind that its marker asks for."""
    device = torch.accelerator.current_accelerator(check_available=True)
    found = None if device is None else device.type
    asked = next(mark for mark in (*KINDS, OTHER) if request.node.get_closest_marker(mark) is not None)
    if found is None or (found if found in KINDS else OTHER) != asked:
        what = "other accelerator" if asked == OTHER else f"{asked} device"
        pytest.skip(f"torch finds {found or 'no accelerator'} on this machine and no {what}")
    return found


@pytest.fixture
def is_stand_in() -> bool:
    """Whether the accelerator is made of the host's own CPU, for which real sizes are too much."""
    return "RECOMPUTE_TUNER_STAND_IN" in os.environ
