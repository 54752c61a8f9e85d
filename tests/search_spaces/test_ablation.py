from __future__ import annotations

import pytest

from search_spaces.ablation import plain_policies
from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape

UNITS = (("attention", "attn"), ("mlp", "mlp"))
ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")


def summaries(micro_batch_sizes: tuple[int, ...], *actions: str, preserve_rng_state: bool = True) -> list[str]:
    shape = ModelShape(1, (BlockList("h", "Block", 12, UNITS),))
    choices = SearchChoices(shape, 8, micro_batch_sizes, actions or ACTIONS, preserve_rng_state=preserve_rng_state)
    return [policy.summary() for policy in plain_policies(choices)]


def test_order_of_a_whole_ablation() -> None:
    assert summaries((1, 2, 4, 8)) == [
        "none @8x1",
        "block @8x1",
        "none @1x8",
        "attention @8x1",
        "mlp @8x1",
        "attention+mlp @8x1",
        "segment(3) @8x1",
        "block @1x8",
        "none @2x4",
        "none @4x2",
        "block @2x4",
        "block @4x2",
    ]


@pytest.mark.parametrize("affordable", [3, 5, 8])
def test_the_first_few_hold_the_baseline_and_both_ways_out_of_memory(affordable: int) -> None:
    first = summaries((1, 2, 4, 8))[:affordable]
    assert first[0] == "none @8x1"
    assert {"block @8x1", "none @1x8"} <= set(first)


def test_actions_that_are_not_allowed_are_left_out() -> None:
    assert summaries((8, 4), "none", "mlp") == ["none @8x1", "none @4x2", "mlp @8x1"]


def test_one_micro_batch_gives_the_placements_alone() -> None:
    assert summaries((8,), "none", "block") == ["none @8x1", "block @8x1"]


def test_placements_follow_the_users_choice_on_rng_state() -> None:
    assert summaries((8,), "none", "block", preserve_rng_state=False) == ["none @8x1", "block rng off @8x1"]


def test_a_model_without_block_lists_has_its_micro_batches() -> None:
    policies = plain_policies(SearchChoices(ModelShape(1), 8, (8, 4, 2), ACTIONS))
    assert [policy.summary() for policy in policies] == ["none @8x1", "none @2x4", "none @4x2"]


def test_an_action_applies_to_all_lists_at_once() -> None:
    shape = ModelShape(1, (BlockList("encoder.block", "B", 4, UNITS), BlockList("decoder.block", "B", 2, UNITS)))
    policies = plain_policies(SearchChoices(shape, 8, (8,), ("none", "attention")))
    assert [[set(p.actions()) for p in policy.placement] for policy in policies] == [
        [{"none"}, {"none"}],
        [{"attention"}, {"attention"}],
    ]
