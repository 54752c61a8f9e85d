"""What one rank of several that share a model holds at the highest moment of a step without recompute."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.memory_profile import Moment, StepProfile
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from tuner.planning.plain_memory import PlainMemory, plain_stretch


def divided_memory(alone: MemoryTimeline, divided: MemoryTimeline, plain: RecomputePolicy) -> tuple[PlainMemory, int]:
    """The parts, and what is whole beside them although it is divided, in bytes; all add up to the peak.

    Args:
        alone: Of a process that trains alone.
        divided: Of one rank.
        plain: Without recompute.

    Raises:
        ValueError: No traced sizes enclose the policy's.
    """
    gathering, profile = divided.profile.gathering, divided.profile
    assert gathering is not None, "the profile is that of a divided model"
    highest = divided.highest_bytes(plain)
    moment = int(highest.argmax())
    step = alone.step_profile(plain.batch.micro_batch_size)
    in_update = moment == len(step.moments)
    stretches = [plain_stretch(alone, step, each) for each in step.moments]
    kept = sum(each.delta_bytes - each.gradient_bytes for each in stretches[:moment])
    whole_before = alone.profile.gradient_bytes if step.accumulates else 0
    static = divided.step_profile(plain.batch.micro_batch_size).static_bytes
    others = static - profile.parameter_bytes - profile.optimizer_state_bytes - whole_before
    gradients = profile.gradient_bytes if in_update else gathering.share(_reduced(step, step.moments[:moment]))
    rest = int(highest[moment]) - profile.parameter_bytes - profile.optimizer_state_bytes - others - gradients
    activations = rest if in_update else kept + stretches[moment].rise_bytes
    parts = PlainMemory(
        parameters=profile.parameter_bytes,
        gradients=gradients,
        optimizer_states=profile.optimizer_state_bytes,
        others=others,
        activations=activations,
        in_update=in_update,
    )
    return parts, rest - activations


def _reduced(step: StepProfile, moments: Sequence[Moment]) -> int:
    """Bytes of the gradients of which only shares are left after these moments."""
    blocks = set()
    for moment in moments:
        if moment.part == "backward":
            assert moment.list_index is not None
            assert moment.call is not None
            blocks.add((moment.list_index, step.lists[moment.list_index].blocks[moment.call]))
    return sum(step.lists[index].gradient_bytes[block] for index, block in blocks)
