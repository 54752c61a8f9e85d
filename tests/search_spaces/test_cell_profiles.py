from __future__ import annotations

import pytest

from search_spaces.cell_profiles import ListCells, joined
from search_spaces.memory_profile import Cell, ListProfile, Stretch

#: A block that keeps 100 inside and hands on 10; in backward it needs 30 more than it gives back, or 5 where it is the
#: odd class 1, which keeps 40 inside.
INNER = {0: 100, 1: 40}
WORK = {0: 30, 1: 5}


def none(kind: int) -> Cell:
    kept = INNER[kind] + 10
    return Cell((kind,), "none", Stretch(kept, kept + 7, 50), Stretch(-kept, WORK[kind], 100))


def block(kind: int) -> Cell:
    rise = INNER[kind] + WORK[kind]
    return Cell((kind,), "block", Stretch(10, INNER[kind] + 17, 50), Stretch(-10, rise, 150), lingering_bytes=3)


def segment(*kinds: int) -> Cell:
    """The true one: all inner activations and the outputs between come back, then backward from the last block."""
    rebuilt = 0
    highest = 0
    for kind in kinds:
        highest = max(highest, rebuilt + INNER[kind] + 17)
        rebuilt += INNER[kind] + 10
    for kind in reversed(kinds):
        highest = max(highest, rebuilt + WORK[kind])
        rebuilt -= INNER[kind] + 10
    forward = max(10 * before + INNER[kind] + 17 for before, kind in enumerate(kinds))
    return Cell(
        kinds, "segment", Stretch(10, forward, 50 * len(kinds)), Stretch(-10, highest + 4, 150 * len(kinds)),
        lingering_bytes=3 * len(kinds),
    )  # fmt: skip


def cells(*segments: tuple[int, ...]) -> ListCells:
    traced = [make(kind) for kind in (0, 1) for make in (none, block)]
    traced += [segment(*kinds) for kinds in segments]
    return ListCells(ListProfile("blocks", (0, 1, 2, 3), (0, 1, 0, 0), tuple(traced)))


def test_what_was_traced_is_given_as_it_is() -> None:
    assert cells((0, 0)).cell((0, 0), "segment") == segment(0, 0)
    assert cells().cell((1,), "block") == block(1)


@pytest.mark.parametrize("length", [3, 4, 5, 9])
def test_lengths_between_and_beyond_the_traced_ones_are_exact_for_alike_blocks(length: int) -> None:
    assert cells((0, 0), (0, 0, 0, 0, 0, 0)).cell((0,) * length, "segment") == segment(*(0,) * length)


@pytest.mark.parametrize("kinds", [(1, 0), (0, 1), (1, 0, 0), (0, 1, 0, 0)])
def test_segments_with_an_odd_block_follow_from_those_without(kinds: tuple[int, ...]) -> None:
    assert cells((0, 0), (0, 0, 0, 0)).cell(kinds, "segment") == segment(*kinds)


def test_one_traced_length_is_enough_for_others() -> None:
    assert cells((0, 0)).cell((0, 0, 0), "segment") == segment(0, 0, 0)


def test_an_action_that_was_never_traced_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="blocks: no block of its kind was traced under action attention"):
        cells().cell((0,), "attention")


def test_stretches_in_a_row_rise_from_where_those_before_end() -> None:
    row = [Stretch(10, 12, 1, 2), Stretch(-4, 3, 1), Stretch(1, 8, 1, 5)]
    assert joined(row) == Stretch(7, 14, 3, 7)
    assert joined([Stretch(-9, 0), Stretch(2, 5)]) == Stretch(-7, 0)
