"""What one training step does to memory, cut into stretches: the plain data that a peak is computed from.

A step runs through fixed stretches (embedding, head, loss) and through the blocks, forward and then backward. Each
stretch is told by two numbers: how many more bytes are alive at its end than at its start, and how far memory rises
within it. Where those depend on nothing but what the block itself recomputes, the peak of every placement follows by
adding up; see ``memory_timeline.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search_spaces.gathering import Gathering


@dataclass(frozen=True)
class Stretch:
    """A stretch of a step.

    Attributes:
        delta_bytes: Bytes alive at its end minus those at its start; negative where it frees more than it keeps.
        rise_bytes: Most bytes alive within it minus those at its start; at least 0 and at least ``delta_bytes``.
        flops: Floating-point operations that run in it, a multiply and an add counting as two.
        gradient_bytes: The part of ``delta_bytes`` that is gradients of parameters that had none before it.
    """

    delta_bytes: int
    rise_bytes: int
    flops: int = 0
    gradient_bytes: int = 0


@dataclass(frozen=True)
class Cell:
    """Blocks that are one recompute region, or a single block under any other action.

    Attributes:
        classes: Class of each of its blocks, in order; blocks of one class behave alike.
        action: As in a policy, units in alphabetical order. A segment has two blocks at least; one block is ``block``.
        forward: Of all its blocks together.
        backward: Of all its blocks together, the rebuild included.
        lingering_bytes: Alive from the end of its forward to the end of the whole forward pass, on top of what its
            forward leaves: autocast's copies of weights, which a rebuild makes anew.
    """

    classes: tuple[int, ...]
    action: str
    forward: Stretch
    backward: Stretch
    lingering_bytes: int = 0


@dataclass(frozen=True)
class ListProfile:
    """One list of blocks.

    Attributes:
        path: Of the list in the model.
        blocks: Position of the block in each call of a block, in order of the forward pass.
        classes: Class of each call, shape as ``blocks``.
        cells: Every cell that was traced.
        parameter_bytes: Of each block of the list, shape (num_blocks,); what blocks share counts for the first.
        gradient_bytes: Of the gradients of each block's parameters, as ``parameter_bytes``.
    """

    path: str
    blocks: tuple[int, ...]
    classes: tuple[int, ...]
    cells: tuple[Cell, ...]
    parameter_bytes: tuple[int, ...] = ()
    gradient_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Moment:
    """One stretch in the order of the step.

    Attributes:
        part: ``fixed`` stretches do not depend on the placement and carry their ``stretch``.
        list_index: Of the list whose block runs; None for fixed ones.
        call: Index of the call in ``ListProfile.blocks``; None for fixed ones.
        released_bytes: Of what a fixed stretch of forward leaves alive, what is let go at the very end of forward:
            local variables of the model's own forward.
        shared_bytes: Of the same, what blocks keep for backward beside their input: masks, tables of positions.
    """

    part: Literal["fixed", "forward", "backward"]
    stretch: Stretch | None = None
    list_index: int | None = None
    call: int | None = None
    released_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class StepProfile:
    """Forward and backward of one micro-batch of a given size, and the update.

    Attributes:
        micro_batch_size: In samples.
        accumulates: The micro-batch is a later one of a step: complete gradients of the ones before are alive, and the
            new ones are added to them.
        static_bytes: Alive before the micro-batch: parameters, buffers, optimizer states, the inputs of the whole step,
            and with ``accumulates`` all gradients.
        moments: The stretches from the first operation of forward to the last of backward.
        lists: One per list of blocks, in the order of the model's shape.
        update: The optimizer's step, with all gradients alive from before.
    """

    micro_batch_size: int
    accumulates: bool
    static_bytes: int
    moments: tuple[Moment, ...]
    lists: tuple[ListProfile, ...]
    update: Stretch


@dataclass(frozen=True)
class MemoryProfile:
    """What a dry run of a model found out.

    Attributes:
        parameter_bytes: Of all parameters, tied ones once.
        gradient_bytes: Of all gradients of a step.
        optimizer_state_bytes: After the first update.
        steps: Ascending in micro-batch size; the sizes between are interpolated.
        rng_state_bytes: What a region keeps of the random generators, where it preserves their state.
        preserve_rng_state: Whether the traced regions did.
        num_checked: Policies whose peak was computed from this profile and compared with a dry run of their own.
        max_relative_error: The largest difference among them, relative to the dry run.
        refusal: Why peaks of this model must not be computed from stretches, in one line; None where they may.
        first_steps: As ``steps``, of the first micro-batch of a step, which finds no gradients; at sizes at which a
            stage of a pipeline may hold all micro-batches of a step at once.
        gathering: How one rank of several holds the model, whose shares the sizes above and static bytes are then of;
            stretches are those of a process alone either way.
        unseen_kernels: Operators that were too large to be tried: what their kernels take for a moment is in no peak.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    steps: tuple[StepProfile, ...]
    rng_state_bytes: int = 0
    preserve_rng_state: bool = True
    num_checked: int = 0
    max_relative_error: float = 0.0
    refusal: str | None = None
    first_steps: tuple[StepProfile, ...] = ()
    gathering: Gathering | None = None
    unseen_kernels: tuple[str, ...] = ()
