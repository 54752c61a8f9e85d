"""The memory profile of one rank of several that share parameters, gradients and optimizer states."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch


def sharded_profile(profile: MemoryProfile, num_shards: int) -> MemoryProfile:
    """The profile from which a `MemoryTimeline` computes the peaks of one rank.

    Counted: an equal share of parameters, gradients and optimizer states, in the types of the traced model;
    activations, buffers and inputs as they are; what is whole at once, see :func:`gathered_bytes`. Not counted: padding
    of shards to equal sizes, the collectives' own buffers, copies in another precision than the model was traced in,
    and what an allocator adds.

    Args:
        profile: One that does not refuse.
        num_shards: Ranks that share the states; 1 divides nothing.

    Raises:
        ValueError: ``num_shards`` is below 1.
    """
    if num_shards < 1:
        raise ValueError(f"num_shards is {num_shards}; at least 1 is allowed")
    if num_shards == 1:
        return profile
    return replace(
        profile,
        parameter_bytes=_share(profile.parameter_bytes, num_shards),
        gradient_bytes=_share(profile.gradient_bytes, num_shards),
        optimizer_state_bytes=_share(profile.optimizer_state_bytes, num_shards),
        steps=tuple(_sharded_step(step, profile, num_shards) for step in profile.steps),
    )


def gathered_bytes(step: StepProfile, profile: MemoryProfile) -> int:
    """What stays whole while blocks run, although it is divided over ranks.

    The parameters of the two neighbouring units (a block, or all that is outside of blocks) that are largest together,
    since one is used while the next is gathered; and the gradients of the largest unit, which wait to be reduced.

    Args:
        step: Of the undivided profile.
    """
    lists = [each.parameter_bytes for each in step.lists if each.parameter_bytes]
    outside = profile.parameter_bytes - sum(map(sum, lists))
    neighbours = [(outside, 0)]
    for blocks in lists:
        neighbours += [(outside, blocks[0]), (blocks[-1], outside), *pairwise(blocks)]
    largest = max(outside, *(size for blocks in lists for size in blocks), 0)
    trainable_ratio = profile.gradient_bytes / max(profile.parameter_bytes, 1)
    return max(first + second for first, second in neighbours) + round(trainable_ratio * largest)


def _sharded_step(step: StepProfile, profile: MemoryProfile, num_shards: int) -> StepProfile:
    states = profile.parameter_bytes + profile.optimizer_state_bytes
    whole = states + (profile.gradient_bytes if step.accumulates else 0)
    divided = _share(states + profile.gradient_bytes, num_shards)
    gathered = gathered_bytes(step, profile)
    # Nothing is gathered any more when the optimizer works on its share.
    update_rise = _share(step.update.rise_bytes, num_shards) - gathered
    return replace(
        step,
        # The share of all gradients counts from the first moment on, so what backward adds of them is left out.
        accumulates=True,
        static_bytes=step.static_bytes - whole + divided + gathered,
        moments=tuple(map(_moment, step.moments)),
        lists=tuple(map(_list, step.lists)),
        update=replace(step.update, delta_bytes=min(0, update_rise), rise_bytes=update_rise),
    )


def _moment(moment: Moment) -> Moment:
    return moment if moment.stretch is None else replace(moment, stretch=_without_gradients(moment.stretch))


def _list(profile: ListProfile) -> ListProfile:
    return replace(profile, cells=tuple(map(_cell, profile.cells)))


def _cell(cell: Cell) -> Cell:
    return replace(cell, forward=_without_gradients(cell.forward), backward=_without_gradients(cell.backward))


def _without_gradients(stretch: Stretch) -> Stretch:
    return replace(stretch, delta_bytes=stretch.delta_bytes - stretch.gradient_bytes, gradient_bytes=0)


def _share(num_bytes: int, num_shards: int) -> int:
    return -(-num_bytes // num_shards)
