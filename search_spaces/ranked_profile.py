"""The memory profile of one rank of a trial, from the profile of a process that trains alone."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch

#: Whole blocks that fully_shard holds at once while it divides them again after use: the one that runs, the next one
#: being gathered, the buffer it is gathered into, and the gradients of the one before being reduced. Seen with torch
#: 2.13 on the CPU: 2.4 to 3.8 blocks, and one more where gradients are reduced in every micro-batch.
_BLOCKS_AT_ONCE = 4
#: The same where blocks stay whole: they are all counted, and a buffer comes on top.
_BLOCKS_BESIDE_ALL = 1


def ranked_profile(profile: MemoryProfile, strategy: str, num_ranks: int, *, reshards: bool = True) -> MemoryProfile:
    """The profile from which a `MemoryTimeline` computes the peaks of one rank.

    ``ddp`` is exact: buckets of all gradients stay beside the model. ``fsdp2`` is an estimate that may be too low;
    what the trials measure corrects it.

    Args:
        profile: One that does not refuse.
        strategy: As in search.yaml; ``none`` changes nothing.
        reshards: Whether blocks are divided again after forward.
    """
    if strategy == "ddp":
        steps = (replace(step, static_bytes=step.static_bytes + profile.gradient_bytes) for step in profile.steps)
        return replace(profile, steps=tuple(steps))
    if strategy != "fsdp2":
        return profile
    return replace(
        profile,
        parameter_bytes=_share(profile.parameter_bytes, num_ranks),
        gradient_bytes=_share(profile.gradient_bytes, num_ranks),
        optimizer_state_bytes=_share(profile.optimizer_state_bytes, num_ranks),
        steps=tuple(_divided(step, profile, num_ranks, reshards=reshards) for step in profile.steps),
    )


def _divided(step: StepProfile, profile: MemoryProfile, num_ranks: int, *, reshards: bool) -> StepProfile:
    states = profile.parameter_bytes + profile.optimizer_state_bytes
    whole = _whole_at_once(step, profile, reshards=reshards)
    # Between the reductions of two steps gradients are those of whole parameters, on every rank.
    kept_ratio = 1.0 if step.accumulates else 1 / num_ranks
    # The optimizer works on shares, when nothing is gathered any more and all gradients are reduced.
    gradients = profile.gradient_bytes if step.accumulates else _share(profile.gradient_bytes, num_ranks)
    leaves = whole + gradients - _share(profile.gradient_bytes, num_ranks)
    rise = _share(step.update.rise_bytes, num_ranks) - leaves
    return replace(
        step,
        static_bytes=step.static_bytes - states + _share(states, num_ranks) + whole,
        moments=tuple(_moment(moment, kept_ratio) for moment in step.moments),
        lists=tuple(_list(each, kept_ratio) for each in step.lists),
        update=replace(step.update, delta_bytes=min(step.update.delta_bytes, rise), rise_bytes=rise),
    )


def _whole_at_once(step: StepProfile, profile: MemoryProfile, *, reshards: bool) -> int:
    """Bytes of whole parameters and of buffers for them that are alive while blocks run."""
    lists = [each.parameter_bytes for each in step.lists if each.parameter_bytes]
    in_blocks = sum(map(sum, lists))
    largest = max((size for blocks in lists for size in blocks), default=0)
    outside = profile.parameter_bytes - in_blocks
    if reshards:
        at_once = _BLOCKS_AT_ONCE if step.accumulates else _BLOCKS_AT_ONCE + 1
        return outside + min(at_once * largest, 2 * in_blocks)
    return profile.parameter_bytes + _BLOCKS_BESIDE_ALL * largest


def _moment(moment: Moment, kept_ratio: float) -> Moment:
    return moment if moment.stretch is None else replace(moment, stretch=_reduced(moment.stretch, kept_ratio))


def _list(profile: ListProfile, kept_ratio: float) -> ListProfile:
    return replace(profile, cells=tuple(_cell(cell, kept_ratio) for cell in profile.cells))


def _cell(cell: Cell, kept_ratio: float) -> Cell:
    return replace(cell, forward=_reduced(cell.forward, kept_ratio), backward=_reduced(cell.backward, kept_ratio))


def _reduced(stretch: Stretch, kept_ratio: float) -> Stretch:
    """With the share of its gradients that this rank keeps once they are reduced."""
    kept = round(stretch.gradient_bytes * kept_ratio)
    delta = stretch.delta_bytes - stretch.gradient_bytes + kept
    return replace(stretch, delta_bytes=delta, gradient_bytes=kept)


def _share(num_bytes: int, num_ranks: int) -> int:
    return -(-num_bytes // num_ranks)
