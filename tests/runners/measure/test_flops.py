from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from runners.apply_policy import apply_policy
from runners.measure.flops import StepFlops, count_step_flops
from runners.measure.phases import PhaseSwitch
from runners.workloads.gpt import gpt
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

NUM_BLOCKS = 5
SAMPLES, TOKENS, WIDTH = 2, 8, 16
ROWS = SAMPLES * TOKENS
# One block forward, multiply and add each: queries, keys and values; scores and their values; projection; MLP.
ATTENTION = 2 * ROWS * WIDTH * 3 * WIDTH + 2 * (2 * SAMPLES * TOKENS * TOKENS * WIDTH) + 2 * ROWS * WIDTH * WIDTH
PROJECTION = 2 * ROWS * WIDTH * WIDTH
UP = DOWN = 2 * ROWS * WIDTH * 4 * WIDTH
BLOCK = ATTENTION + UP + DOWN


def count_flops(run: Callable[[], object]) -> int:
    """FLOPs of all that runs; with a switch that no region reports to, rebuilds count like the rest."""
    return count_step_flops(run, PhaseSwitch()).plain


def count(*regions: Region, dropout: float = 0.0) -> StepFlops:
    torch.manual_seed(0)
    model = gpt(n_layer=NUM_BLOCKS, n_embd=WIDTH, n_head=2, vocab_size=32, max_sequence_length=8, dropout=dropout)
    batch = model.example_batch(SAMPLES, TOKENS)
    phases = PhaseSwitch()
    placement = BlockListPlacement("blocks", NUM_BLOCKS, (("attention", "attn"), ("mlp", "mlp")), regions)
    apply_policy(model, RecomputePolicy(BatchShape(SAMPLES, 1, 1, SAMPLES), (placement,)), observer=phases)
    step = count_step_flops(lambda: model(**batch).backward(), phases)
    total = count_flops(lambda: model(**batch).backward())
    assert total == step.plain + step.recomputed
    return step


def test_forward_of_a_block_is_its_matrix_products() -> None:
    model = gpt(n_layer=1, n_embd=WIDTH, n_head=2, vocab_size=32, max_sequence_length=8, dropout=0.1)
    assert count_flops(lambda: model.blocks[0](torch.randn(SAMPLES, TOKENS, WIDTH))) == BLOCK


def test_convolution_and_backward_are_counted() -> None:
    convolution = nn.Conv2d(3, 5, 3, padding=1, bias=False)
    forward = 2 * 5 * 3 * 3 * 3 * 4 * 4
    images = torch.randn(1, 3, 4, 4)
    assert count_flops(lambda: convolution(images)) == forward
    assert count_flops(lambda: convolution(images).sum().backward()) == 2 * forward


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_plain_part_is_that_of_a_step_without_recompute(dropout: float) -> None:
    plain = count(dropout=dropout)
    assert plain.recomputed == 0
    for regions in [(Region(0, 4, "block"),), (Region(0, 4, "attention+mlp"),), (Region(0, 4, "segment", 2),)]:
        assert count(*regions, dropout=dropout).plain == plain.plain


# With dropout a region's last saved tensor is the mask of its last dropout, so all its products run again. Without,
# nothing after the input of the last product is kept, and early stop leaves that product out.
@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ((), lambda saved: 0),
        ((Region(0, 0, "block"),), lambda saved: BLOCK - saved * DOWN),
        ((Region(1, 3, "block"),), lambda saved: 3 * (BLOCK - saved * DOWN)),
        ((Region(0, 4, "mlp"),), lambda saved: 5 * (UP + DOWN - saved * DOWN)),
        ((Region(0, 4, "attention"),), lambda saved: 5 * (ATTENTION - saved * PROJECTION)),
        ((Region(0, 4, "attention+mlp"),), lambda saved: 5 * (BLOCK - saved * (DOWN + PROJECTION))),
        ((Region(0, 4, "segment", 5),), lambda saved: 5 * BLOCK - saved * DOWN),
        ((Region(0, 4, "segment", 3),), lambda saved: 5 * BLOCK - saved * 2 * DOWN),
        ((Region(0, 1, "segment", 2), Region(4, 4, "mlp")), lambda saved: 2 * BLOCK + UP + (1 - 2 * saved) * DOWN),
    ],
    ids=["none", "one block", "three blocks", "mlp", "attention", "both units", "one segment", "segments", "mixture"],
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recompute_costs_exactly_the_forwards_of_its_regions(
    regions: tuple[Region, ...], expected: Callable[[int], int], dropout: float
) -> None:
    assert count(*regions, dropout=dropout).recomputed == expected(int(dropout == 0.0))


def test_region_inside_another_is_counted_with_the_outer_one() -> None:
    torch.manual_seed(0)
    model = gpt(n_layer=1, n_embd=WIDTH, n_head=2, vocab_size=32, max_sequence_length=8, dropout=0.1)
    batch, phases = model.example_batch(SAMPLES, TOKENS), PhaseSwitch()
    plain = count_flops(lambda: model(**batch).backward())
    placement = BlockListPlacement("blocks", 1, (("mlp", "mlp"), ("up", "mlp.up")), (Region(0, 0, "mlp+up"),))
    apply_policy(model, RecomputePolicy(BatchShape(SAMPLES, 1, 1, SAMPLES), (placement,)), observer=phases)
    step = count_step_flops(lambda: model(**batch).backward(), phases)
    assert step.plain == plain
    assert step.recomputed >= UP + DOWN
