"""Puts what fully_shard holds into the stretches of a step: exactly under a policy, or cell by cell for a solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from search_spaces.gathering import NO_GROUP, Change, Gathering, Group
from search_spaces.memory_profile import Cell, ListProfile, StepProfile, Stretch
from search_spaces.policy import SEGMENT, RecomputePolicy


@dataclass(frozen=True)
class _PlacedGroup:
    """A group and the moments in which it runs; ``backward`` is None where no gradient comes through."""

    group: Group
    forward: int
    backward: int | None


class GatheredStep:
    """What one rank holds in a step.

    Args:
        step: Of a process that trains alone.
    """

    def __init__(self, step: StepProfile, gathering: Gathering) -> None:
        self._step = step
        self._gathering = gathering
        at = {(m.part, m.list_index, m.call): index for index, m in enumerate(step.moments) if m.part != "fixed"}
        self._forward_at = {(index, call): moment for (part, index, call), moment in at.items() if part == "forward"}
        self._backward_at = {(index, call): moment for (part, index, call), moment in at.items() if part == "backward"}
        self._last = len(step.moments) - 1
        self._head = min(max(self._forward_at.values(), default=-1) + 1, self._last)
        first_backward = min(self._backward_at.values(), default=self._last)
        self._turn = min(self._head + 1, max(first_backward - 1, self._head))

    def apply(self, policy: RecomputePolicy, deltas: npt.NDArray[np.int64], rises: npt.NDArray[np.int64]) -> None:
        """Adds it to the stretches of the step under the policy, in place; each array has a value per moment."""

        def change(moment: int, to: Callable[[Change], Change]) -> None:
            changed = to(Change(int(deltas[moment]), int(rises[moment])))
            deltas[moment], rises[moment] = changed.delta_bytes, changed.rise_bytes

        gathering = self._gathering
        placed = self._groups(policy)
        change(0, gathering.first)
        before = gathering.outside
        for each in placed:
            change(each.forward, _with(gathering.forward, each.group, before))
            before = each.group
        change(self._head, _with(gathering.head, before))
        if placed:
            change(self._turn, _with(gathering.turn, placed[-1].group))
        reduced = NO_GROUP
        for index in range(len(placed) - 1, -1, -1):
            each, following = placed[index], placed[index - 1].group if index else NO_GROUP
            if each.backward is not None:
                change(each.backward, _with(gathering.backward, each.group, following, reduced))
                reduced = each.group
        change(self._last, _with(gathering.last, reduced))

    @cached_property
    def typical(self) -> StepProfile:
        """The step with the fixed stretches as they are where all blocks are groups as large as the largest."""
        gathering, single = self._gathering, largest_block(self._step)
        stretches = [None if m.stretch is None else _change(m.stretch) for m in self._step.moments]

        def change(moment: int, to: Callable[[Change], Change]) -> None:
            before = stretches[moment]
            if before is not None:
                stretches[moment] = to(before)

        change(0, gathering.first)
        if self._forward_at:
            # The first block's buffer takes the place of the one outside of blocks, which is alive while it is filled.
            change(0, lambda first: _exchanged(first, gathering, single))
        change(self._head, _with(gathering.head, single if self._forward_at else gathering.outside))
        if self._forward_at:
            change(self._turn, _with(gathering.turn, single))
            # Each block takes the buffer of gradients of the block before it for given: so does the first to come.
            change(self._turn, lambda turn: Change(turn.delta_bytes + single.gradient_bytes, turn.rise_bytes))
        change(self._last, _with(gathering.last, single))
        moments = tuple(
            moment if moment.stretch is None or new is None else replace(moment, stretch=_changed(moment.stretch, new))
            for moment, new in zip(self._step.moments, stretches, strict=True)
        )
        return replace(self._step, moments=moments)

    def _groups(self, policy: RecomputePolicy) -> list[_PlacedGroup]:
        """In the order of forward."""
        placements = {placement.blocks: placement for placement in policy.placement}
        groups = []
        for index, profile in enumerate(self._step.lists):
            placement = placements.get(profile.path)
            regions = () if placement is None else placement.regions
            ends = {first: last for r in regions if r.action == SEGMENT for first, last in r.segments()}
            later = {block for first, last in ends.items() for block in range(first + 1, last + 1)}
            for call, block in enumerate(profile.blocks):
                group = _group(profile, range(block, ends.get(block, block) + 1))
                if block not in later and group.parameter_bytes:
                    key = (index, call)
                    groups.append(_PlacedGroup(group, self._forward_at[key], self._backward_at.get(key)))
        return sorted(groups, key=lambda placed: placed.forward)


def gathered_cell(cell: Cell, profile: ListProfile, gathering: Gathering, single: Group) -> Cell:
    """A cell among others of its kind, for who adds cells up without knowing their neighbours.

    Args:
        single: The buffers that are alive around a cell are taken to be as large as this group's. Where its own are
            larger, they count in its rise.
    """
    blocks = [profile.blocks[profile.classes.index(kind)] for kind in cell.classes]
    group = _group(profile, blocks)
    forward = gathering.forward(_change(cell.forward), group, group)
    backward = gathering.backward(_change(cell.backward), group, group, group)
    more = group.parameter_bytes - single.parameter_bytes
    more_in_backward = (more if gathering.reshards else 0) + group.gradient_bytes - single.gradient_bytes
    return replace(
        cell,
        forward=_changed(cell.forward, replace(forward, rise_bytes=forward.rise_bytes + more)),
        backward=_changed(cell.backward, replace(backward, rise_bytes=backward.rise_bytes + more_in_backward)),
    )


def largest_block(step: StepProfile) -> Group:
    """Of all lists."""
    groups = [_group(profile, [block]) for profile in step.lists for block in range(len(profile.parameter_bytes))]
    return max(groups, key=lambda group: group.parameter_bytes, default=NO_GROUP)


def _group(profile: ListProfile, blocks: Sequence[int]) -> Group:
    return Group(
        sum(profile.parameter_bytes[block] for block in blocks), sum(profile.gradient_bytes[block] for block in blocks)
    )


def _exchanged(first: Change, gathering: Gathering, single: Group) -> Change:
    delta = first.delta_bytes - gathering.outside.parameter_bytes + single.parameter_bytes
    return Change(delta, max(first.rise_bytes, first.delta_bytes + gathering.sent(single.parameter_bytes)))


def _with(to: Callable[..., Change], *groups: Group) -> Callable[[Change], Change]:
    return lambda change: to(change, *groups)


def _change(stretch: Stretch) -> Change:
    return Change(stretch.delta_bytes, stretch.rise_bytes)


def _changed(stretch: Stretch, change: Change) -> Stretch:
    rise = max(change.rise_bytes, change.delta_bytes, 0)
    return replace(stretch, delta_bytes=change.delta_bytes, rise_bytes=rise)
