from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.cell_profiles import ListCells
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

UNITS = (("attention", "attn"), ("mlp", "mlp"))
ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")
GLOBAL = 16
RNG = 11


def cells(path: str, size: int, lingering: int) -> tuple[Cell, ...]:
    """Of three classes; every action keeps another share of what its class keeps."""
    made = []
    for kind in (0, 1, 2):
        whole = (100 + 40 * kind + len(path)) * size
        for number, action in enumerate(ACTIONS[:-1]):
            kept = whole - number * whole // 5
            made.append(
                Cell(
                    (kind,), action, Stretch(kept, whole + 9 * size, 10 * size),
                    Stretch(-kept + 6, (20 + number) * size + number * whole // 5, (20 + number) * size, 6),
                    lingering if number else 0,
                )
            )  # fmt: skip
    for length in (2, 5):
        made.append(
            Cell((1,) * length, "segment", Stretch(30 * size, (200 + 30 * length) * size, 10 * size * length),
                 Stretch(-30 * size + 6 * length, 150 * size * length, 33 * size * length, 6 * length), length)
        )  # fmt: skip
    return tuple(made)


def list_profile(path: str, num_blocks: int, size: int) -> ListProfile:
    classes = (0, *(1,) * (num_blocks - 2), 2)
    blocks = tuple(range(num_blocks))
    return ListProfile(path, blocks, classes, cells(path, size, 5), (70,) * num_blocks)


def step(size: int, lengths: tuple[int, ...], accumulates: bool = True) -> StepProfile:
    lists = tuple(list_profile(f"list{index}", length, size) for index, length in enumerate(lengths))
    forward: list[Moment] = []
    backward: list[Moment] = []
    for index, each in enumerate(lists):
        forward.append(Moment("fixed", Stretch(17 * size, 40 * size, 1)))
        forward += [Moment("forward", None, index, call) for call in each.blocks]
        backward.insert(0, Moment("fixed", Stretch(-17 * size + 8, 45 * size, 2, 8)))
        backward[:0] = [Moment("backward", None, index, call) for call in reversed(each.blocks)]
    head = [Moment("fixed", Stretch(90 * size, 300 * size, 3)), Moment("fixed", Stretch(-90 * size, 320 * size, 6))]
    moments = (*forward, *head, *backward)
    return StepProfile(size, accumulates, 5000 + 10 * size, moments, lists, Stretch(-900, 250))


def profile(lengths: tuple[int, ...], sizes: tuple[int, ...] = (2,), preserve: bool = True) -> MemoryProfile:
    steps = tuple(step(size, lengths, size < GLOBAL) for size in sizes)
    return MemoryProfile(3000, 900, 1000, steps, RNG, preserve)


def policy(placements: tuple[BlockListPlacement, ...] = (), size: int = 2, rng: bool = True) -> RecomputePolicy:
    return RecomputePolicy(BatchShape.split(global_batch_size=GLOBAL, micro_batch_size=size), placements, rng)


def walked(of: MemoryProfile, placed: RecomputePolicy) -> tuple[int, int]:
    """Peak bytes and FLOPs of a micro-batch, block by block from the definition."""
    step = of.steps[0]
    placements = {placement.blocks: placement.canonical() for placement in placed.placement}
    cell_of: dict[tuple[int, int], tuple[Cell, bool]] = {}
    for index, each in enumerate(step.lists):
        find = ListCells(each)
        for block in each.blocks:
            cell_of[index, block] = (find.cell((each.classes[block],), "none"), True)
        for region in placements[each.path].regions if each.path in placements else ():
            spans = region.segments() if region.action == "segment" else [
                (block, block) for block in range(region.first, region.last + 1)
            ]  # fmt: skip
            for first, last in spans:
                action = "block" if region.action == "segment" and first == last else region.action
                cell = find.cell(each.classes[first : last + 1], action)
                for block in range(first, last + 1):
                    cell_of[index, block] = (cell, block == first)
    live = peak = step.static_bytes
    flops = lingering = 0
    last_forward = max(i for i, moment in enumerate(step.moments) if moment.part == "forward")
    for number, moment in enumerate(step.moments):
        if moment.stretch is not None:
            stretch = moment.stretch
        else:
            cell, runs = cell_of[moment.list_index or 0, moment.call or 0]
            stretch = (cell.forward if moment.part == "forward" else cell.backward) if runs else Stretch(0, 0)
            if moment.part == "forward" and runs:
                lingering += cell.lingering_bytes
                live += cell.lingering_bytes
                peak = max(peak, live - cell.lingering_bytes + stretch.rise_bytes)
                live += stretch.delta_bytes
                flops += stretch.flops
                continue
        peak = max(peak, live + stretch.rise_bytes)
        live += stretch.delta_bytes
        flops += stretch.flops
        if number == last_forward + 1:
            live -= lingering
    return max(peak, live + step.update.rise_bytes), flops


@st.composite
def placements(draw: Any, path: str, num_blocks: int) -> BlockListPlacement:
    regions = []
    first = 0
    while first < num_blocks:
        last = draw(st.integers(first, num_blocks - 1))
        action = draw(st.sampled_from(ACTIONS))
        size = draw(st.integers(2, 6)) if action == "segment" else None
        if action != "none":
            regions.append(Region(first, last, action, size))
        first = last + 1
    return BlockListPlacement(path, num_blocks, UNITS, tuple(regions))


@settings(deadline=None)
@given(first=placements("list0", 9), second=placements("list1", 4))
def test_peak_and_flops_are_those_of_a_walk_through_the_step(
    first: BlockListPlacement, second: BlockListPlacement
) -> None:
    of = profile((9, 4))
    timeline = MemoryTimeline(of)
    placed = policy((first, second))
    peak, flops = walked(of, placed)
    _, plain_flops = walked(of, policy())
    assert timeline.peak_bytes(placed) == peak
    assert timeline.flops(placed) == (8 * plain_flops, 8 * (flops - plain_flops))


@settings(deadline=None)
@given(placed=placements("list0", 9))
def test_equal_policies_have_equal_peaks_however_they_are_written(placed: BlockListPlacement) -> None:
    timeline = MemoryTimeline(profile((9,)))
    assert timeline.peak_bytes(policy((placed,))) == timeline.peak_bytes(policy((placed,)).canonical())


def test_order_of_units_does_not_matter() -> None:
    timeline = MemoryTimeline(profile((9,)))
    peaks = [
        timeline.peak_bytes(policy((BlockListPlacement("list0", 9, UNITS, (Region(0, 8, action),)),)))
        for action in ("attention+mlp", "mlp+attention")
    ]
    assert peaks[0] == peaks[1]


def test_regions_that_do_not_keep_the_generators_state_are_smaller_by_it() -> None:
    timeline = MemoryTimeline(profile((9,)))
    placed = (BlockListPlacement("list0", 9, UNITS, (Region(0, 3, "attention+mlp"), Region(4, 8, "segment", 3))),)
    with_state, without = (timeline.peak_bytes(policy(placed, rng=rng)) for rng in (True, False))
    assert 0 < with_state - without <= RNG * (4 * 2 + 2)


def test_sizes_between_are_on_a_straight_line() -> None:
    timeline = MemoryTimeline(profile((9,), sizes=(2, 8, GLOBAL)))
    traced = profile((9,), sizes=(4,))
    assert timeline.step_profile(4) == traced.steps[0]
    assert timeline.step_profile(8) == timeline.profile.steps[1]
    assert timeline.peak_bytes(policy(size=4)) == MemoryTimeline(traced).peak_bytes(policy(size=4))


@pytest.mark.parametrize("size", [1, 16])
def test_sizes_outside_are_refused(size: int) -> None:
    timeline = MemoryTimeline(profile((9,), sizes=(2, 8)))
    with pytest.raises(ValueError, match=f"micro_batch_size is {size}, which no traced sizes enclose; traced are 2, 8"):
        timeline.peak_bytes(policy(size=size))


def test_the_step_without_accumulation_is_no_end_of_a_line() -> None:
    timeline = MemoryTimeline(profile((9,), sizes=(2, GLOBAL)))
    with pytest.raises(ValueError, match="traced are 2, 16"):
        timeline.peak_bytes(policy(size=8))


def test_lists_and_actions_that_were_not_traced_are_refused() -> None:
    timeline = MemoryTimeline(profile((9,)))
    with pytest.raises(ValueError, match="placement of other: no such list of blocks was traced; traced are list0"):
        timeline.peak_bytes(policy((BlockListPlacement("other", 9),)))
    gone = replace(timeline.profile.steps[0].lists[0], cells=())
    broken = replace(timeline.profile, steps=(replace(timeline.profile.steps[0], lists=(gone,)),))
    with pytest.raises(ValueError, match="was traced under action none"):
        MemoryTimeline(broken).peak_bytes(policy())


def test_work_does_not_grow_with_the_number_of_blocks() -> None:
    def calls_for(num_blocks: int) -> int:
        timeline = MemoryTimeline(profile((num_blocks,)))
        last = num_blocks - 1
        regions = (Region(0, 3, "mlp"), Region(4, last - 2, "segment", 2), Region(last - 1, last, "block"))
        placed = policy((BlockListPlacement("list0", num_blocks, UNITS, regions),))
        timeline.peak_bytes(placed)  # Tables are made at the first call.
        calls = 0

        def count(_frame: Any, _event: str, _arg: Any) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            timeline.peak_bytes(placed)
        finally:
            sys.setprofile(None)
        return calls

    assert calls_for(126) == calls_for(12)


def test_same_answers_in_any_order() -> None:
    draw = random.Random(0)
    policies = [
        policy((BlockListPlacement("list0", 9, UNITS, (Region(0, draw.randrange(9), draw.choice(ACTIONS[1:-1])),)),))
        for _ in range(20)
    ]
    timeline = MemoryTimeline(profile((9,)))
    peaks = [timeline.peak_bytes(placed) for placed in policies]
    assert [MemoryTimeline(profile((9,))).peak_bytes(placed) for placed in reversed(policies)] == peaks[::-1]
