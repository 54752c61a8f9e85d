"""The memory profile of one rank of a trial, from the profile of a process that trains alone."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.gathering import Gathering, Group
from search_spaces.memory_profile import MemoryProfile, StepProfile


def ranked_profile(
    profile: MemoryProfile, strategy: str, num_ranks: int, *, reshards: bool = True, copies: bool = True
) -> MemoryProfile:
    """The profile from which a `MemoryTimeline` computes the peaks of one rank.

    ``ddp``: buckets of all gradients stay beside the model. ``fsdp2``: an equal share of parameters, gradients and
    optimizer states, and what is whole for a while, see `gathering.py`. Not counted: padding of shards to equal sizes.

    Args:
        profile: One that does not refuse.
        strategy: As in search.yaml; ``none`` changes nothing.
        reshards: Whether blocks are divided again after forward.
        copies: Whether collectives work on a copy of what they send, as those of a CPU do.
    """
    if strategy == "ddp":
        steps = (replace(step, static_bytes=step.static_bytes + profile.gradient_bytes) for step in profile.steps)
        return replace(profile, steps=tuple(steps))
    if strategy != "fsdp2":
        return profile
    gathering = Gathering(num_ranks, _outside(profile), reshards=reshards, copies=copies)
    return replace(
        profile,
        parameter_bytes=gathering.share(profile.parameter_bytes),
        gradient_bytes=gathering.share(profile.gradient_bytes),
        optimizer_state_bytes=gathering.share(profile.optimizer_state_bytes),
        steps=tuple(_divided(step, profile, gathering) for step in profile.steps),
        gathering=gathering,
    )


def _outside(profile: MemoryProfile) -> Group:
    """What is in no block."""
    lists = profile.steps[0].lists if profile.steps else ()
    in_blocks = sum(sum(each.parameter_bytes) for each in lists)
    gradients = sum(sum(each.gradient_bytes) for each in lists)
    return Group(profile.parameter_bytes - in_blocks, profile.gradient_bytes - gradients)


def _divided(step: StepProfile, profile: MemoryProfile, gathering: Gathering) -> StepProfile:
    """With shares of what is alive before. Whole gradients add up from micro-batch to micro-batch on every rank."""
    states = profile.parameter_bytes + profile.optimizer_state_bytes
    # The optimizer works on shares, when nothing is gathered any more.
    update = replace(
        step.update,
        delta_bytes=-gathering.share(-step.update.delta_bytes),
        rise_bytes=gathering.share(step.update.rise_bytes),
    )
    return replace(step, static_bytes=step.static_bytes - states + gathering.share(states), update=update)
