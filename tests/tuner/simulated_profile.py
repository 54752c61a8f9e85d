"""What a dry run of the simulated model finds out: peaks are those that the simulated device measures, to the byte."""

from __future__ import annotations

from simulation import COST, KEPT_BYTES, MIB, NUM_BLOCKS, STATIC_BYTES

from runners.trial import DryRunResult
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch

PARAMETERS, GRADIENTS, OPTIMIZER_STATES = 2 * MIB, MIB, 4 * MIB
#: Of a block and a sample, forward and backward; recompute adds what the device takes for it.
FLOPS = 3000


def step_profile(micro_batch_size: int, *, accumulates: bool) -> StepProfile:
    """One micro-batch of the simulated model."""
    cells = tuple(_cell(action, micro_batch_size, accumulates) for action in KEPT_BYTES)
    blocks = tuple(range(NUM_BLOCKS))
    parameters, gradients = (PARAMETERS // 4,) * NUM_BLOCKS, (GRADIENTS // NUM_BLOCKS,) * NUM_BLOCKS
    of_list = ListProfile("h", blocks, (0,) * NUM_BLOCKS, cells, parameters, gradients)
    moments = [Moment("forward", list_index=0, call=call) for call in blocks]
    moments += [Moment("backward", list_index=0, call=call) for call in reversed(blocks)]
    return StepProfile(micro_batch_size, accumulates, STATIC_BYTES, tuple(moments), (of_list,), Stretch(-GRADIENTS, 0))


def _cell(action: str, micro_batch_size: int, accumulates: bool) -> Cell:
    kept = KEPT_BYTES[action] * micro_batch_size
    flops = FLOPS * micro_batch_size
    gradient = 0 if accumulates else GRADIENTS // NUM_BLOCKS
    backward = Stretch(gradient - kept, max(gradient - kept, 0), round(flops * (2 / 3 + COST[action])), gradient)
    return Cell((0,), action, Stretch(kept, kept, flops // 3), backward)


PROFILE = MemoryProfile(
    PARAMETERS,
    GRADIENTS,
    OPTIMIZER_STATES,
    steps=(step_profile(1, accumulates=True), step_profile(2, accumulates=False)),
    num_checked=4,
    max_relative_error=0.001,
)
DRY_RUN = DryRunResult(profile=PROFILE, wall_time_s=0.5)
