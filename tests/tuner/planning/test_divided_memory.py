from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy
from search_spaces.ranked_profile import ranked_profile
from tuner.planning.divided_memory import divided_memory

#: 60 bytes of parameters, as many of gradients, twice as many of states: two blocks of 10 and 40 outside of them.
BLOCK, OUTSIDE, WHOLE = 10, 40, 60
INPUTS, KEPT, HEAD_RISE = 7, 1000, 500
NUM_RANKS = 4


def profile(*, accumulates: bool, update_rise: int = 12) -> MemoryProfile:
    new = 0 if accumulates else BLOCK
    plain = Cell((0,), "none", Stretch(KEPT, KEPT), Stretch(new - KEPT, new, gradient_bytes=new))
    last = 0 if accumulates else OUTSIDE
    moments = (
        Moment("fixed", Stretch(0, 0)),
        *(Moment("forward", list_index=0, call=call) for call in (0, 1)),
        Moment("fixed", Stretch(20, HEAD_RISE)),
        Moment("fixed", Stretch(-20, 0)),
        *(Moment("backward", list_index=0, call=call) for call in (1, 0)),
        Moment("fixed", Stretch(last, last, gradient_bytes=last)),
    )
    blocks = ListProfile("h", (0, 1), (0, 0), (plain,), (BLOCK, BLOCK), (BLOCK, BLOCK))
    static = 3 * WHOLE + INPUTS + (WHOLE if accumulates else 0)
    step = StepProfile(1, accumulates, static, moments, (blocks,), Stretch(-WHOLE, update_rise))
    return MemoryProfile(WHOLE, WHOLE, 2 * WHOLE, (step,))


@pytest.mark.parametrize(
    ("accumulates", "reshards", "gathered"),
    [
        (False, True, OUTSIDE + BLOCK),  # The last block's buffer goes when forward ends.
        (False, False, OUTSIDE + BLOCK + 2 * BLOCK),
        (True, True, OUTSIDE + BLOCK + WHOLE),  # Gradients of earlier micro-batches are whole until the last.
    ],
)
def test_what_is_whole_when_forward_ends(accumulates: bool, reshards: bool, gathered: int) -> None:
    alone = profile(accumulates=accumulates)
    divided = MemoryTimeline(ranked_profile(alone, "fsdp2", NUM_RANKS, reshards=reshards, copies=False))
    policy = RecomputePolicy(BatchShape(1, 1, NUM_RANKS, NUM_RANKS), (BlockListPlacement("h", 2),))
    parts, whole = divided_memory(MemoryTimeline(alone), divided, policy)
    assert (parts.parameters, parts.optimizer_states, parts.others) == (WHOLE // 4, 2 * WHOLE // 4, INPUTS)
    assert (parts.gradients, parts.activations, parts.in_update) == (0, 2 * KEPT + HEAD_RISE, False)
    assert whole == gathered
    assert parts.peak + whole == divided.peak_bytes(policy)


def test_nothing_is_whole_in_the_update() -> None:
    alone = profile(accumulates=False, update_rise=40_000)
    divided = MemoryTimeline(ranked_profile(alone, "fsdp2", NUM_RANKS))
    policy = RecomputePolicy(BatchShape(1, 1, NUM_RANKS, NUM_RANKS), (BlockListPlacement("h", 2),))
    parts, whole = divided_memory(MemoryTimeline(alone), divided, policy)
    # Each group's share is rounded up: twice 10 over 4 ranks are 3 and 3.
    assert (parts.gradients, parts.activations, parts.in_update, whole) == (15, 10_000 + 1, True, 0)
    assert parts.peak == divided.peak_bytes(policy)


def test_gradients_are_shares_once_they_are_reduced() -> None:
    alone = profile(accumulates=True)
    *before, last = alone.steps[0].moments
    step = replace(alone.steps[0], moments=(*before, replace(last, stretch=Stretch(0, 10_000))))
    alone = replace(alone, steps=(step,))
    divided = MemoryTimeline(ranked_profile(alone, "fsdp2", NUM_RANKS, copies=False))
    policy = RecomputePolicy(BatchShape(1, 1, NUM_RANKS, NUM_RANKS), (BlockListPlacement("h", 2),))
    parts, whole = divided_memory(MemoryTimeline(alone), divided, policy)
    # Of both blocks; those outside are still whole, as is what the first block's gradients are reduced from.
    assert (parts.gradients, parts.activations) == (5, 10_000)
    assert whole == 2 * OUTSIDE + BLOCK + 1
