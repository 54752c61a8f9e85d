"""The peak of each stage of a pipeline, from the stretches of a step that was traced in one process.

A stage runs its part of the forward pass of a few micro-batches before the first of them runs backward. So its peak is
what it holds all the time, what it keeps of each micro-batch in flight but one, and the highest point of that one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from search_spaces.memory_profile import Moment, StepProfile
from search_spaces.memory_timeline import MemoryTimeline, PlacedStretches
from search_spaces.policy import RecomputePolicy

_Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PipelineStages:
    """How a model is cut, as far as memory is concerned.

    Attributes:
        first_blocks: The first block of each stage.
        outside_bytes: Parameters outside of the list of blocks that each stage holds.
        hidden_bytes: What one sample takes on its way from each stage to the next; one fewer than stages.
    """

    first_blocks: tuple[int, ...]
    outside_bytes: tuple[int, ...]
    hidden_bytes: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        return len(self.first_blocks)

    def stage_of(self, block: int) -> int:
        return sum(first <= block for first in self.first_blocks) - 1

    def in_flight(self, stage: int, num_micro_batches: int) -> int:
        """Micro-batches of which the stage holds activations at once, as 1F1B runs them."""
        return min(self.num_stages - stage, num_micro_batches)


@dataclass(frozen=True)
class StageMoments:
    """Indices of the moments that a stage runs.

    Attributes:
        forward: In order.
        backward: In order.
    """

    forward: _Array
    backward: _Array


class StageTimeline:
    """Computes the peaks of stages from the profile of a process that trains alone."""

    def __init__(self, timeline: MemoryTimeline, stages: PipelineStages) -> None:
        self.timeline = timeline
        self.stages = stages

    def peak_bytes(self, policy: RecomputePolicy) -> int:
        """Of the worst stage."""
        return max(self.stage_peaks(policy))

    def stage_peaks(self, policy: RecomputePolicy) -> tuple[int, ...]:
        """Of each stage.

        Raises:
            ValueError: As `MemoryTimeline.peak_bytes`.
        """
        placed = self.timeline.placed_stretches(policy)
        num_micro_batches = policy.batch.gradient_accumulation_steps
        peaks = []
        for stage in range(self.stages.num_stages):
            kept, height = _kept_and_height(placed, stage_moments(placed.profile, self.stages, stage))
            peaks.append(self.peak_of(placed.profile, stage, num_micro_batches, kept, height))
        return tuple(peaks)

    def peak_of(self, step: StepProfile, stage: int, num_micro_batches: int, kept: int, height: int) -> int:
        """The peak of one stage.

        Args:
            kept: Bytes that forward of one micro-batch leaves for backward.
            height: Most bytes alive in forward and backward of one micro-batch, over those before it.
        """
        of_others = (self.stages.in_flight(stage, num_micro_batches) - 1) * kept
        above = max(of_others + height, step.update.rise_bytes)
        return self.static_bytes(step, stage, num_micro_batches) + above

    def static_bytes(self, step: StepProfile, stage: int, num_micro_batches: int) -> int:
        """What the stage holds all the time: its states and gradients, all inputs, and torch's buffers.

        Those are one for each micro-batch that is received, on both ways.
        """
        profile, stages = self.timeline.profile, self.stages
        states = profile.parameter_bytes + profile.optimizer_state_bytes + profile.gradient_bytes
        whole = states if step.accumulates else states - profile.gradient_bytes
        in_blocks = step.lists[0].parameter_bytes
        ends = (*stages.first_blocks[1:], len(in_blocks))
        own = sum(in_blocks[stages.first_blocks[stage] : ends[stage]]) + stages.outside_bytes[stage]
        share = own / max(profile.parameter_bytes, 1)
        samples = num_micro_batches * step.micro_batch_size
        received = stages.hidden_bytes[stage - 1 : stage] if stage > 0 else ()
        sent = stages.hidden_bytes[stage : stage + 1]
        return step.static_bytes - whole + round(share * states) + samples * (sum(received) + sum(sent))

    def stage_flops(self, policy: RecomputePolicy) -> tuple[int, ...]:
        """Floating-point operations that each stage runs for one micro-batch, rebuilds included."""
        placed = self.timeline.placed_stretches(policy)
        flops = []
        for stage in range(self.stages.num_stages):
            own = stage_moments(placed.profile, self.stages, stage)
            flops.append(int(placed.flops[own.forward].sum() + placed.flops[own.backward].sum()))
        return tuple(flops)


def stage_moments(step: StepProfile, stages: PipelineStages, stage: int) -> StageMoments:
    """The moments that a stage runs; what lies between blocks runs with the block before it, in either direction."""
    end_of_forward = _end_of_forward(step.moments)
    forward: list[int] = []
    backward: list[int] = []
    current = 0
    for index, moment in enumerate(step.moments):
        if moment.list_index is not None and moment.call is not None:
            current = stages.stage_of(step.lists[moment.list_index].blocks[moment.call])
        if current == stage:
            (forward if index <= end_of_forward else backward).append(index)
    return StageMoments(np.array(forward, dtype=np.int64), np.array(backward, dtype=np.int64))


def _end_of_forward(moments: tuple[Moment, ...]) -> int:
    """Index of the head, which comes right after the last block's forward."""
    return max((index for index, moment in enumerate(moments) if moment.part == "forward"), default=0) + 1


def _kept_and_height(placed: PlacedStretches, own: StageMoments) -> tuple[int, int]:
    delta, lingering = placed.delta_bytes[own.forward], placed.lingering_bytes[own.forward]
    before = np.cumsum(delta + lingering) - delta - lingering
    forward = int((before + placed.rise_bytes[own.forward]).max(initial=0))
    kept = int(delta.sum())
    delta = placed.delta_bytes[own.backward]
    backward = int((np.cumsum(delta) - delta + placed.rise_bytes[own.backward]).max(initial=0))
    return kept, max(forward, kept + backward)
