"""What memory is made of at the highest moment of a step without recompute."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.memory_profile import Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import NONE


@dataclass(frozen=True)
class PlainMemory:
    """Bytes at the highest moment; the parts add up to the peak.

    Attributes:
        gradients: Complete ones of earlier micro-batches, or those that backward has made up to that moment.
        others: Buffers, inputs and whatever else is alive before the step.
        activations: All that the step itself makes and drops, temporary memory included.
        in_update: The highest moment is the optimizer's.
    """

    parameters: int
    gradients: int
    optimizer_states: int
    others: int
    activations: int
    in_update: bool

    @property
    def peak(self) -> int:
        return self.parameters + self.gradients + self.optimizer_states + self.others + self.activations


def plain_memory(timeline: MemoryTimeline, micro_batch_size: int) -> PlainMemory:
    """The parts at one size.

    Raises:
        ValueError: No traced sizes enclose it.
    """
    profile, step = timeline.profile, timeline.step_profile(micro_batch_size)
    gradients_before = profile.gradient_bytes if step.accumulates else 0
    highest, gradients, in_update = _highest_moment(timeline, step)
    others = step.static_bytes - profile.parameter_bytes - profile.optimizer_state_bytes - gradients_before
    return PlainMemory(
        parameters=profile.parameter_bytes,
        gradients=gradients_before + gradients,
        optimizer_states=profile.optimizer_state_bytes,
        others=others,
        activations=highest - gradients,
        in_update=in_update,
    )


def _highest_moment(timeline: MemoryTimeline, step: StepProfile) -> tuple[int, int, bool]:
    """Most bytes over those before the micro-batch, new gradients among them at that moment, and whether in update."""
    alive = gradients = 0
    highest, gradients_then = 0, 0
    for moment in step.moments:
        stretch = plain_stretch(timeline, step, moment)
        if alive + stretch.rise_bytes > highest:
            highest, gradients_then = alive + stretch.rise_bytes, gradients
        alive += stretch.delta_bytes
        gradients += stretch.gradient_bytes
    if alive + step.update.rise_bytes > highest:
        return alive + step.update.rise_bytes, gradients, True
    return highest, gradients_then, False


def plain_stretch(timeline: MemoryTimeline, step: StepProfile, moment: Moment) -> Stretch:
    """What runs in a moment of a step without recompute."""
    if moment.stretch is not None:
        return moment.stretch
    assert moment.list_index is not None, "a moment is fixed or a block's"
    assert moment.call is not None
    blocks = step.lists[moment.list_index]
    cell = timeline.cell(blocks, (blocks.classes[moment.call],), NONE)
    return cell.forward if moment.part == "forward" else cell.backward
