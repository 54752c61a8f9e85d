"""What a dry run of one micro-batch saw, in plain data: its stretches in order, each with what it did to memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search_spaces.memory_profile import Stretch


@dataclass(frozen=True)
class StretchKey:
    """Which stretch of a step.

    Attributes:
        part: ``fixed`` is what runs outside the blocks.
        list_index: Of the list whose block runs; None for fixed ones.
        call: Index among the calls of the list's blocks. For fixed ones the number of calls, of any list, that
            began before it in forward; so the same number names a stretch in forward and its counterpart in backward.
        in_backward: False in forward, of fixed stretches as of others.
    """

    part: Literal["fixed", "forward", "backward"]
    list_index: int | None
    call: int
    in_backward: bool

    @property
    def call_id(self) -> tuple[int | None, int]:
        """The same in a stretch's forward and in its backward."""
        return self.list_index, self.call


@dataclass(frozen=True)
class TracedStretch:
    """One stretch as it ran.

    Attributes:
        num_operations: How many it ran: a block that is placed the same way runs the same number each time.
        released_bytes: Let go at the very end of forward, of what it left alive or was handed.
        shared_bytes: Of what a fixed stretch made, what blocks save beside their input: masks, tables of positions.
    """

    key: StretchKey
    stretch: Stretch
    num_operations: int
    released_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class StepTrace:
    """Forward and backward of one micro-batch under one policy.

    Attributes:
        accumulates: Complete gradients were alive from the start, as in every micro-batch of a step but the first.
        static_bytes: Alive before, the inputs of the whole step included.
        calls: Position of the block in each call, per list.
        keeps_output: Whether the blocks of a list save their own outputs, per list.
    """

    accumulates: bool
    static_bytes: int
    stretches: tuple[TracedStretch, ...]
    calls: tuple[tuple[int, ...], ...]
    keeps_output: tuple[bool, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive."""
        live = peak = self.static_bytes
        for traced in self.stretches:
            peak = max(peak, live + traced.stretch.rise_bytes)
            live += traced.stretch.delta_bytes
        return peak

    @property
    def end_bytes(self) -> int:
        """Bytes alive after backward."""
        return self.static_bytes + sum(traced.stretch.delta_bytes for traced in self.stretches)
