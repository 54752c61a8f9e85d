"""The peak of each stage of a pipeline, from the stretches of a step that was traced in one process.

A stage runs its part of the forward pass of a few micro-batches before the first of them runs backward. So its peak is
what it holds all the time, what it keeps of each micro-batch in flight but one, and the highest point of that one. If
these are all micro-batches of a step, there are no gradients yet when the stage is fullest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
        tied_bytes: Of trained parameters that the first and the last stage share.
    """

    first_blocks: tuple[int, ...]
    outside_bytes: tuple[int, ...]
    hidden_bytes: tuple[int, ...]
    tied_bytes: int = 0

    @property
    def num_stages(self) -> int:
        return len(self.first_blocks)

    def stage_of(self, block: int) -> int:
        return sum(first <= block for first in self.first_blocks) - 1

    def in_flight(self, stage: int, num_micro_batches: int) -> int:
        """Micro-batches of which the stage holds activations at once, as 1F1B runs them."""
        return min(self.num_stages - stage, num_micro_batches)


@dataclass(frozen=True)
class StageHeights:
    """What one micro-batch does to the memory of a stage, in bytes; arrays are of as many placements.

    Attributes:
        kept: What its forward leaves for its backward.
        forward: Most alive within its forward, over what was alive before.
        backward: Most alive within its backward, over what was alive before that.
        first_backward: As ``backward``, of the first micro-batch of a step, which finds no gradients; None where others
            are in flight when gradients are there as well.
    """

    kept: _Array
    forward: _Array
    backward: _Array
    first_backward: _Array | None = None


@dataclass(frozen=True)
class StageMoments:
    """What a stage runs of a step, and where that differs from what one process does in the same moments.

    Attributes:
        forward: Indices of moments, in order.
        backward: Indices of moments, in order.
        released_bytes: What these moments of forward seem to keep and do not: it is let go at the end of forward, which
            is the last stage's moment in one process and each stage's own in a pipeline.
        repeated_bytes: Alive in the whole forward: what the model makes before its first block, which each stage makes
            for itself.
        shared_bytes: The part of it that the stage's blocks keep for backward.
        staying_bytes: Alive after the first moment of backward, more than in one process. A gradient that was received
            stays in torch's buffer, where one process lets it go in that moment. On the last stage it is negative: one
            process holds the head's gradient of a tied weight until it has the embedding's, to add them up.
    """

    forward: _Array
    backward: _Array
    released_bytes: int = 0
    repeated_bytes: int = 0
    shared_bytes: int = 0
    staying_bytes: int = 0


class StageTimeline:
    """Computes the peaks of stages from the profile of a process that trains alone."""

    def __init__(self, timeline: MemoryTimeline, stages: PipelineStages) -> None:
        self.timeline = timeline
        self.stages = stages
        profile = timeline.profile
        first = {step.micro_batch_size: step for step in profile.first_steps}
        self._first_steps = first
        self.first_timeline = MemoryTimeline(replace(profile, steps=profile.first_steps)) if first else None

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
            first = self.first_step(placed.profile.micro_batch_size, stage, num_micro_batches)
            heights = _heights(placed, stage_moments(placed.profile, self.stages, stage))
            if first is not None and self.first_timeline is not None:
                placed_first = self.first_timeline.placed_stretches(policy)
                own = stage_moments(first, self.stages, stage)
                heights = replace(heights, first_backward=_heights(placed_first, own).backward)
            peaks.append(int(self.peak_of(placed.profile, stage, num_micro_batches, heights)))
        return tuple(peaks)

    def first_step(self, micro_batch_size: int, stage: int, num_micro_batches: int) -> StepProfile | None:
        """The profile of a step's first micro-batch, where the stage holds all of a step when that runs backward."""
        is_all = self.stages.in_flight(stage, num_micro_batches) == num_micro_batches
        return self._first_steps.get(micro_batch_size) if is_all else None

    def peak_of(self, step: StepProfile, stage: int, num_micro_batches: int, heights: StageHeights) -> _Array:
        """The peak of one stage."""
        in_flight = self.stages.in_flight(stage, num_micro_batches)
        kept = in_flight * heights.kept
        if heights.first_backward is None:
            fullest = np.maximum(kept - heights.kept + heights.forward, kept + heights.backward)
        else:
            without = np.maximum(kept - heights.kept + heights.forward, kept + heights.first_backward)
            later = kept - heights.kept + heights.backward
            fullest = np.maximum(without - self._gradient_bytes(step, stage), later)
        above: _Array = np.maximum(fullest, step.update.rise_bytes)
        return self.static_bytes(step, stage, num_micro_batches) + above

    def static_bytes(self, step: StepProfile, stage: int, num_micro_batches: int) -> int:
        """What the stage holds all the time: its states and gradients, all inputs, and torch's buffers.

        Those are one for each micro-batch that is received, on both ways. What was sent last is still held while the
        next micro-batch runs: the gradient of the stage's input, and its output where others follow those in flight.
        """
        profile, stages = self.timeline.profile, self.stages
        states = profile.parameter_bytes + profile.optimizer_state_bytes + profile.gradient_bytes
        whole = states if step.accumulates else states - profile.gradient_bytes
        share = self._share(step, stage)
        size = step.micro_batch_size
        received = size * stages.hidden_bytes[stage - 1] if stage > 0 else 0
        sent = size * stages.hidden_bytes[stage] if stage + 1 < stages.num_stages else 0
        last_sent = received + (sent if num_micro_batches > stages.in_flight(stage, num_micro_batches) else 0)
        buffers = num_micro_batches * (received + sent) + last_sent
        return step.static_bytes - whole + round(share * states) + buffers

    def _share(self, step: StepProfile, stage: int) -> float:
        """Of the model's parameters."""
        in_blocks = step.lists[0].parameter_bytes
        ends = (*self.stages.first_blocks[1:], len(in_blocks))
        own = sum(in_blocks[self.stages.first_blocks[stage] : ends[stage]]) + self.stages.outside_bytes[stage]
        return own / max(self.timeline.profile.parameter_bytes, 1)

    def _gradient_bytes(self, step: StepProfile, stage: int) -> int:
        return round(self._share(step, stage) * self.timeline.profile.gradient_bytes)

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
    released = sum(step.moments[index].released_bytes for index in forward)
    first_block = next((index for index, moment in enumerate(step.moments) if moment.part == "forward"), 0)
    repeated = step.moments[:first_block] if stage > 0 else ()
    shared = sum(moment.shared_bytes for moment in repeated)
    is_last = stage == stages.num_stages - 1
    return StageMoments(
        np.array(forward, dtype=np.int64),
        np.array(backward, dtype=np.int64),
        released_bytes=released - (sum(moment.released_bytes for moment in step.moments) if is_last else 0),
        repeated_bytes=sum(moment.released_bytes for moment in repeated) + shared,
        shared_bytes=shared,
        staying_bytes=-stages.tied_bytes if is_last else step.micro_batch_size * stages.hidden_bytes[stage],
    )


def _end_of_forward(moments: tuple[Moment, ...]) -> int:
    """Index of the head, which comes right after the last block's forward."""
    return max((index for index, moment in enumerate(moments) if moment.part == "forward"), default=0) + 1


def _heights(placed: PlacedStretches, own: StageMoments) -> StageHeights:
    delta, lingering = placed.delta_bytes[own.forward], placed.lingering_bytes[own.forward]
    before = np.cumsum(delta + lingering) - delta - lingering
    forward = (before + placed.rise_bytes[own.forward]).max(initial=0) + own.repeated_bytes
    kept = delta.sum() + own.shared_bytes - own.released_bytes
    second = min(1, len(own.backward))  # A stage in which nothing is trained has no backward.
    delta = np.insert(placed.delta_bytes[own.backward], second, own.staying_bytes)
    rise = np.insert(placed.rise_bytes[own.backward], second, max(own.staying_bytes, 0))
    backward = (np.cumsum(delta) - delta + rise).max(initial=0)
    return StageHeights(kept, forward, backward)
