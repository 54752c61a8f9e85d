from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runners.diagnosis.records import AttentionUse, DropoutModules, ModelHabits, OwnCheckpoint

Make = Callable[..., Any]


@pytest.fixture
def habits(subject: Make) -> Callable[..., ModelHabits]:
    def observe(factory: str, args: dict[str, Any] | None = None) -> ModelHabits:
        found = subject(f"diagnosed.py:{factory}", args).diagnose()
        assert found.failure is None
        shown: ModelHabits = found.habits
        return shown

    return observe


def test_a_plain_model_has_none(habits: Callable[..., ModelHabits]) -> None:
    assert habits("ladder") == ModelHabits()


def test_fused_attention_is_named_by_its_kernel(habits: Callable[..., ModelHabits]) -> None:
    (use,) = habits("fused").attention
    kernel = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert use == AttentionUse(kernel=kernel, is_fused=True, num_calls=2, modules=("blocks.0.attn", "blocks.1.attn"))


def test_dropout_on_the_weights_takes_the_fused_kernel_away(habits: Callable[..., ModelHabits]) -> None:
    found = habits("fused", {"dropout": 0.1})
    assert [(use.kernel, use.is_fused) for use in found.attention] == [("scaled_dot_product_attention (math)", False)]
    assert found.random_streams == ("torch CPU",)
    assert found.dropout == (), "no module says so"


def test_attention_by_hand_is_told_by_its_softmax(habits: Callable[..., ModelHabits]) -> None:
    assert [(use.kernel, use.is_fused) for use in habits("by_hand").attention] == [("softmax", False)]


@pytest.mark.parametrize(
    ("args", "kernel"),
    [
        ({}, "aten._scaled_dot_product_flash_attention_for_cpu"),
        ({"dropout": 0.1}, "scaled_dot_product_attention (math)"),
        ({"need_weights": True}, "multi_head_attention_forward (need_weights)"),
    ],
    ids=["fused", "dropout", "weights"],
)
def test_torchs_own_module_is_told_by_what_takes_its_fused_kernel_away(
    habits: Callable[..., ModelHabits], args: dict[str, Any], kernel: str
) -> None:
    found = habits("torchs_module", args).attention
    assert [(use.kernel, use.is_fused) for use in found] == [(kernel, kernel.startswith("aten"))]


def test_own_checkpoints_are_named_by_the_module_that_they_recompute(habits: Callable[..., ModelHabits]) -> None:
    own = OwnCheckpoint(module="blocks.0", function="checkpoint", use_reentrant=False, num_calls=1)
    assert habits("self_checkpointed").own_checkpoints == (own,)


def test_dropout_streams_and_buffers_are_named(habits: Callable[..., ModelHabits]) -> None:
    found = habits("counting")
    assert found.dropout == (DropoutModules(p=0.25, modules=("blocks.0.drop", "blocks.1.drop")),)
    assert found.random_streams == ("torch CPU", "Python random")
    (operator,) = found.random_operators
    assert operator.modules == ("blocks.0.drop", "blocks.1.drop")
    names = ("running_mean", "running_var", "num_batches_tracked")
    assert found.changed_buffers == tuple(f"blocks.{i}.attn.0.{name}" for i in (0, 1) for name in names)
