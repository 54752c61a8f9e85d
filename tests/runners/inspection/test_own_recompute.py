from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from runners.inspection.own_recompute import is_switched_on, watch_for_recompute


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_region_is_seen_however_its_function_was_imported(use_reentrant: bool) -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    with watch_for_recompute() as watch:
        checkpoint(layer, x, use_reentrant=use_reentrant)
    assert watch.found


def test_a_sequence_of_regions_is_seen() -> None:
    layers, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(1, 2, requires_grad=True)
    with watch_for_recompute() as watch:
        checkpoint_sequential(layers, 2, x, use_reentrant=False)
    assert watch.found


def test_a_model_that_saves_its_weights_is_no_recompute() -> None:
    def checkpoint(model: nn.Module) -> dict[str, Any]:
        return model.state_dict()

    with watch_for_recompute() as watch:
        checkpoint(nn.Linear(2, 2))
    assert not watch.found


def test_a_profiler_that_was_set_before_goes_on() -> None:
    seen: list[str] = []
    outer = sys.getprofile()
    profiler = lambda frame, event, argument: seen.append(frame.f_code.co_name)  # noqa: E731  # compared by identity
    sys.setprofile(profiler)
    try:
        with watch_for_recompute():
            nn.Linear(2, 2)(torch.ones(1, 2))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(outer)
    assert "forward" in seen


def test_the_switch_of_transformers_is_read() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16)
    model = transformers.GPT2LMHeadModel(config)
    assert not is_switched_on(model)
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable()
    assert is_switched_on(model)
