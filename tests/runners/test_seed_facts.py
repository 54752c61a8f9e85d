"""Facts that the whole project stands on, shown on the built-in GPT: recompute costs what it runs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from runners.apply_policy import apply_policy
from runners.measure.flops import count_step_flops
from runners.measure.phases import PhaseSwitch
from runners.workloads.gpt import GPT, gpt
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

NUM_BLOCKS = 6
UNITS = (("attention", "attn"), ("mlp", "mlp"))
PLACEMENTS = {
    "every block": Region(0, 5, "block"),
    "attention": Region(0, 5, "attention"),
    "mlp": Region(0, 5, "mlp"),
    "both units": Region(0, 5, "attention+mlp"),
    "segments of three": Region(0, 5, "segment", 3),
}
NUM_SAMPLES, NUM_TOKENS, WIDTH = 2, 8, 16
#: A matrix product of the narrowing half of the MLP: (B*T, 4D) by (4D, D), a multiply and an add each.
DOWN_PROJECTION_FLOPS = 2 * NUM_SAMPLES * NUM_TOKENS * 4 * WIDTH * WIDTH


def count_flops(run: Callable[[], object]) -> int:
    """FLOPs of all that runs; with a switch that no region reports to, rebuilds count like the rest."""
    return count_step_flops(run, PhaseSwitch()).plain


def policy_of(*regions: Region, preserve_rng_state: bool = True) -> RecomputePolicy:
    placement = BlockListPlacement("blocks", NUM_BLOCKS, UNITS, regions)
    return RecomputePolicy(BatchShape(NUM_SAMPLES, 1, 1, NUM_SAMPLES), (placement,), preserve_rng_state)


def make_model(*, dropout: float) -> GPT:
    torch.manual_seed(0)
    return gpt(n_layer=NUM_BLOCKS, n_embd=WIDTH, n_head=2, vocab_size=32, max_sequence_length=16, dropout=dropout)


def train_once(model: GPT) -> dict[str, torch.Tensor]:
    """Gradients of one forward and backward, always with the same data and the same random numbers."""
    model.zero_grad()
    torch.manual_seed(1)
    batch = model.example_batch(NUM_SAMPLES, NUM_TOKENS)
    model(**batch).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.mark.parametrize("region", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_gradients_are_equal_to_the_last_bit_where_the_rng_state_is_preserved(region: Region) -> None:
    model = make_model(dropout=0.1)
    plain = train_once(model)
    apply_policy(model, policy_of(region))
    assert largest_difference(train_once(model), plain) == 0


@pytest.mark.parametrize("region", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_gradients_differ_where_dropout_draws_another_mask_in_the_rebuild(region: Region) -> None:
    model = make_model(dropout=0.1)
    plain = train_once(model)
    largest = max(float(gradient.abs().max()) for gradient in plain.values())
    apply_policy(model, policy_of(region, preserve_rng_state=False))
    assert largest_difference(train_once(model), plain) > 0.01 * largest


def test_without_dropout_the_rng_state_does_not_matter() -> None:
    model = make_model(dropout=0.0)
    plain = train_once(model)
    apply_policy(model, policy_of(Region(0, 5, "block"), preserve_rng_state=False))
    assert largest_difference(train_once(model), plain) == 0


def extra_flops(model: GPT, *regions: Region) -> int:
    """What one forward and backward costs more under the policy."""
    plain = count_flops(lambda: train_once(model))
    applied = apply_policy(model, policy_of(*regions))
    flops = count_flops(lambda: train_once(model))
    applied.undo()
    return flops - plain


def block_forward_flops(model: GPT) -> int:
    x = torch.randn(NUM_SAMPLES, NUM_TOKENS, WIDTH)
    return count_flops(lambda: model.blocks[0](x))


@pytest.mark.parametrize("num_recomputed", [0, 1, 3, NUM_BLOCKS])
def test_recompute_of_k_blocks_costs_exactly_k_block_forwards(num_recomputed: int) -> None:
    # The last thing that a block keeps for backward is the mask of its last dropout, so early stop finds the rebuild
    # at the end of its matrix products already and saves none of them.
    model = make_model(dropout=0.1)
    regions = [Region(0, num_recomputed - 1, "block")] if num_recomputed else []
    assert block_forward_flops(model) > 0
    assert extra_flops(model, *regions) == num_recomputed * block_forward_flops(model)


@pytest.mark.parametrize("num_recomputed", [1, 3, NUM_BLOCKS])
def test_early_stop_saves_the_last_projection_of_each_block_without_dropout(num_recomputed: int) -> None:
    # Without dropout the last thing kept is the input of the MLP's second matrix. The rebuild stops when that is back,
    # before the product itself: its result is added to the residual stream, and an addition keeps nothing.
    model = make_model(dropout=0.0)
    saved = num_recomputed * DOWN_PROJECTION_FLOPS
    region = Region(0, num_recomputed - 1, "block")
    assert extra_flops(model, region) == num_recomputed * block_forward_flops(model) - saved


def test_with_early_stop_off_every_rebuild_is_a_whole_block_forward() -> None:
    model = make_model(dropout=0.0)
    with set_checkpoint_early_stop(False):
        extra = extra_flops(model, Region(0, 2, "block"))
    assert extra == 3 * block_forward_flops(model)


def test_a_segment_stops_early_once_and_not_once_per_block() -> None:
    # Only the region's own end can be left out. So where regions end decides what early stop saves.
    model = make_model(dropout=0.0)
    num_segments = 2
    extra = extra_flops(model, Region(0, 5, "segment", 3))
    assert extra == NUM_BLOCKS * block_forward_flops(model) - num_segments * DOWN_PROJECTION_FLOPS


def test_recompute_of_both_units_costs_what_recompute_of_each_costs() -> None:
    model = make_model(dropout=0.1)
    attention, mlp, both = (extra_flops(model, Region(0, 5, name)) for name in ("attention", "mlp", "attention+mlp"))
    assert attention > 0
    assert mlp > 0
    assert both == attention + mlp == NUM_BLOCKS * block_forward_flops(model)
