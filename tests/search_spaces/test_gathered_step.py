"""What one rank holds, against a ledger in which every buffer is taken and given back one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.gathering import NO_GROUP, Change, Gathering, Group
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from search_spaces.ranked_profile import ranked_profile

OUTSIDE = 40
INPUTS = 7
#: What a block, and each segment, keeps for backward and takes while it runs.
KEPT, WORK = 30, 55
HEAD = Stretch(20, 60)
NUM_RANKS = 4


def profile(sizes: tuple[int, ...], *, accumulates: bool) -> MemoryProfile:
    total = OUTSIDE + sum(sizes)
    cells, moments = [], [Moment("fixed", Stretch(5, 9))]
    for block, size in enumerate(sizes):
        new = 0 if accumulates else size
        backward = Stretch(new - KEPT, new + WORK, gradient_bytes=new)
        cells += [Cell((block,), action, Stretch(KEPT, WORK), backward) for action in ("none", "block")]
    for first in range(len(sizes) - 1):
        new = 0 if accumulates else sizes[first] + sizes[first + 1]
        backward = Stretch(new - KEPT, new + WORK, gradient_bytes=new)
        cells.append(Cell((first, first + 1), "segment", Stretch(KEPT, WORK), backward))
    positions = tuple(range(len(sizes)))
    moments += [Moment("forward", list_index=0, call=block) for block in positions]
    moments += [Moment("fixed", HEAD), Moment("fixed", Stretch(-HEAD.delta_bytes, 70))]
    moments += [Moment("backward", list_index=0, call=block) for block in reversed(positions)]
    new = 0 if accumulates else OUTSIDE
    moments.append(Moment("fixed", Stretch(new - 5, new + 3, gradient_bytes=new)))
    lists = (ListProfile("h", positions, positions, tuple(cells), parameter_bytes=sizes, gradient_bytes=sizes),)
    static = 3 * total + INPUTS + (total if accumulates else 0)
    step = StepProfile(1, accumulates, static, tuple(moments), lists, Stretch(-total, 12))
    return MemoryProfile(total, total, 2 * total, (step,))


class Ledger:
    """Counts what is taken and given back."""

    def __init__(self, alive: int) -> None:
        self.alive = self.peak = alive

    def take(self, num_bytes: int) -> None:
        self.alive += num_bytes
        self.peak = max(self.peak, self.alive)

    def give(self, num_bytes: int) -> None:
        self.alive -= num_bytes

    def touch(self, num_bytes: int) -> None:
        self.take(num_bytes)
        self.give(num_bytes)

    def run(self, stretch: Stretch) -> None:
        self.touch(stretch.rise_bytes)
        self.take(stretch.delta_bytes)


def share(num_bytes: int) -> int:
    return -(-num_bytes // NUM_RANKS)


def walked(
    sizes: tuple[int, ...], groups: list[tuple[int, ...]], *, accumulates: bool, reshards: bool, copies: bool
) -> int:
    """Most bytes alive in the last micro-batch of a step, in the order in which fully_shard takes and gives."""
    total, step = OUTSIDE + sum(sizes), profile(sizes, accumulates=accumulates).steps[0]
    whole = [sum(sizes[block] for block in group) for group in groups]
    ledger = Ledger(INPUTS + share(3 * total) + (total if accumulates else 0))

    def gather(num_bytes: int) -> None:
        ledger.take(num_bytes)
        ledger.touch(num_bytes if copies else 0)

    gather(OUTSIDE)
    ledger.take(OUTSIDE)
    ledger.run(Stretch(5, 9))
    buffer = OUTSIDE
    for size in whole:
        gather(size)
        ledger.give(buffer)
        buffer = size
        ledger.take(size)
        ledger.run(Stretch(KEPT, WORK))
        if reshards:
            ledger.give(size)
    ledger.run(HEAD)
    ledger.give(buffer)
    if reshards:
        gather(whole[-1])
    ledger.run(Stretch(-HEAD.delta_bytes, 70))
    reduced = 0

    def reduce(size: int) -> None:
        nonlocal reduced
        ledger.give(reduced)
        ledger.take(size)  # A buffer, which is filled with the gradients.
        ledger.give(size)  # They themselves.
        ledger.take(share(size))
        ledger.touch(size if copies else 0)
        reduced = size

    for index in reversed(range(len(groups))):
        size = whole[index]
        if reshards:
            ledger.take(size)
            ledger.give(size)  # The buffer.
            gather(whole[index - 1] if index else 0)
        new = 0 if accumulates else size
        ledger.run(Stretch(new - KEPT, new + WORK))
        ledger.give(size)
        reduce(size)
    new = 0 if accumulates else OUTSIDE
    ledger.run(Stretch(new - 5, new + 3))
    ledger.give(OUTSIDE)
    reduce(OUTSIDE)
    ledger.give(reduced)
    assert step.update.delta_bytes == -total
    ledger.touch(share(12))
    return ledger.peak


def policy(num_blocks: int, groups: list[tuple[int, ...]]) -> RecomputePolicy:
    regions = tuple(Region(group[0], group[-1], "segment", 2) for group in groups if len(group) > 1)
    return RecomputePolicy(BatchShape(1, 1, 1, 1), (BlockListPlacement("h", num_blocks, (), regions),))


def grouped(num_blocks: int, pairs: set[int]) -> list[tuple[int, ...]]:
    groups, block = [], 0
    while block < num_blocks:
        length = 2 if block in pairs and block + 1 < num_blocks else 1
        groups.append(tuple(range(block, block + length)))
        block += length
    return groups


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6).map(tuple),
    pairs=st.sets(st.integers(0, 5)),
    accumulates=st.booleans(),
    reshards=st.booleans(),
    copies=st.booleans(),
)
def test_peaks_are_those_of_the_ledger(
    sizes: tuple[int, ...], pairs: set[int], accumulates: bool, reshards: bool, copies: bool
) -> None:
    groups = grouped(len(sizes), pairs)
    ranked = ranked_profile(
        profile(sizes, accumulates=accumulates), "fsdp2", NUM_RANKS, reshards=reshards, copies=copies
    )
    expected = walked(sizes, groups, accumulates=accumulates, reshards=reshards, copies=copies)
    assert MemoryTimeline(ranked).peak_bytes(policy(len(sizes), groups)) == expected


@pytest.mark.parametrize("reshards", [True, False])
@pytest.mark.parametrize("accumulates", [True, False])
def test_cells_among_their_kind_add_up_to_the_same_peak(reshards: bool, accumulates: bool) -> None:
    sizes = (50,) * 5
    ranked = ranked_profile(profile(sizes, accumulates=accumulates), "fsdp2", NUM_RANKS, reshards=reshards)
    timeline = MemoryTimeline(ranked)
    step = timeline.step_profile(1)
    alive = peak = step.static_bytes
    for moment in step.moments:
        stretch = moment.stretch
        if stretch is None:
            assert moment.call is not None
            cell = timeline.cell(step.lists[0], (moment.call,), "none")
            stretch = cell.forward if moment.part == "forward" else cell.backward
        peak = max(peak, alive + stretch.rise_bytes)
        alive += stretch.delta_bytes
    # The first gradient buffer has none before it; among others of its kind a block has.
    exact = timeline.peak_bytes(policy(5, grouped(5, set())))
    assert exact <= max(peak, alive + step.update.rise_bytes) <= exact + 50


def test_frozen_parameters_are_gathered_and_leave_no_share_of_gradients() -> None:
    gathering = Gathering(NUM_RANKS, NO_GROUP, reshards=True, copies=True)
    frozen = gathering.backward(Change(-KEPT, WORK), Group(100, 0), NO_GROUP, NO_GROUP)
    # The buffer that was gathered for the block goes; to copy it out took as much again.
    assert frozen == Change(-KEPT - 100, 100)
