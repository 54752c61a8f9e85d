"""One rank of several that share parameters, gradients and optimizer states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from search_spaces.sharded_profile import gathered_bytes, sharded_profile

#: 100 bytes of parameters: blocks of 10, 30 and 20, and 40 outside of them. Gradients weigh as much, states twice.
BLOCKS = (10, 30, 20)
INPUTS = 7


def profile(*, accumulates: bool, update_rise: int = 0) -> MemoryProfile:
    static = 100 + 200 + INPUTS + (100 if accumulates else 0)
    cells, moments = [], []
    for block, size in enumerate(BLOCKS):
        gradient = 0 if accumulates else size
        for action, kept in (("none", 1000), ("block", 100)):
            backward = Stretch(gradient - kept, 50, flops=5, gradient_bytes=gradient)
            cells.append(Cell((block,), action, Stretch(kept, kept + 20), backward))
        moments.append(Moment("forward", list_index=0, call=block))
    moments += [Moment("backward", list_index=0, call=block) for block in (2, 1, 0)]
    outside = 0 if accumulates else 40
    moments.append(Moment("fixed", Stretch(outside, outside, gradient_bytes=outside)))
    lists = (ListProfile("h", (0, 1, 2), (0, 1, 2), tuple(cells), BLOCKS),)
    step = StepProfile(1, accumulates, static, tuple(moments), lists, Stretch(-100, update_rise))
    return MemoryProfile(100, 100, 200, (step,))


def policy(*, num_recomputed: int = 0) -> RecomputePolicy:
    regions = (Region(0, num_recomputed - 1, "block"),) if num_recomputed else ()
    return RecomputePolicy(BatchShape(1, 1, 1, 1), (BlockListPlacement("h", 3, (), regions),))


def peak(of: MemoryProfile, **placed: int) -> int:
    return MemoryTimeline(of).peak_bytes(policy(**placed))


@pytest.mark.parametrize("accumulates", [True, False])
def test_states_are_divided_and_what_runs_is_whole(accumulates: bool) -> None:
    """400 bytes of states over 4 ranks; outside and block 2 are gathered; the gradients of outside wait."""
    assert peak(sharded_profile(profile(accumulates=accumulates), 4)) == INPUTS + 100 + (40 + 20) + 40 + 3000 + 50


def test_more_ranks_never_need_more() -> None:
    for accumulates in (True, False):
        whole = profile(accumulates=accumulates)
        peaks = [peak(sharded_profile(whole, num_shards), num_recomputed=1) for num_shards in (2, 3, 8, 64)]
        assert peaks == sorted(peaks, reverse=True)
        assert len(set(peaks)) == 4


def test_what_is_kept_is_not_divided() -> None:
    divided = sharded_profile(profile(accumulates=True), 4)
    assert peak(divided) - peak(divided, num_recomputed=2) == 2 * 900


def test_gathered_are_the_two_largest_neighbours_and_one_units_gradients() -> None:
    whole = profile(accumulates=True)
    assert gathered_bytes(whole.steps[0], whole) == (40 + 20) + 40
    frozen_half = replace(whole, gradient_bytes=50)
    assert gathered_bytes(whole.steps[0], frozen_half) == (40 + 20) + 20


def test_nothing_is_gathered_while_the_optimizer_works_on_its_share() -> None:
    divided = sharded_profile(profile(accumulates=True, update_rise=100_000), 4)
    assert peak(divided) == INPUTS + 100 + 25_000


def test_shares_are_rounded_up() -> None:
    divided = sharded_profile(profile(accumulates=True), 3)
    assert (divided.parameter_bytes, divided.gradient_bytes, divided.optimizer_state_bytes) == (34, 34, 67)


def test_one_rank_has_everything() -> None:
    whole = profile(accumulates=False)
    assert sharded_profile(whole, 1) is whole


def test_flops_stay_as_they_are() -> None:
    whole = profile(accumulates=False)
    divided = sharded_profile(whole, 8)
    assert MemoryTimeline(divided).flops(policy()) == MemoryTimeline(whole).flops(policy())


def test_fewer_than_one_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="num_shards is 0; at least 1 is allowed"):
        sharded_profile(profile(accumulates=True), 0)
