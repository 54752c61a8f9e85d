"""The fastest placement under a cap, exactly, from what each list's placements cost in time and do to memory.

The lists of a model nest: what the blocks of one list keep is alive while those after it run forward and backward. So
the highest point of a step, seen from where a list begins, is one of three: within its own forward, within all that
comes after it (on top of what the list keeps), or within its own backward. Working from the last list outwards, only
combinations that no other beats in time and height at once can be part of an answer, and those are few.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from tuner.prediction.candidates import Candidates
from tuner.prediction.placement_features import FloatArray, IntArray, ListFeatures, PlacementFeatures
from tuner.prediction.placement_table import ListTerms, PlacementTable
from tuner.prediction.time_model import TimeWeights

#: Policies up to which all of them are weighed at once, which is faster than solving for each set of weights.
_MOST_LISTED = 100_000
#: Sets of weights that are solved for, where they are too many: each takes a tenth of a second on deep models.
_MOST_SOLVED = 9
#: Residues (bytes alive after a backward) that are told apart when combinations are pruned.
_MOST_RESIDUES = 32


class NotNestedError(Exception):
    """The lists of the model do not run one within the other, so their terms do not add up this way."""


@dataclass(frozen=True)
class SolvedFront:
    """Placements that no other beats in time and peak at once, at one micro-batch size; the fastest first.

    Attributes:
        times: Shape (num_points,), ascending.
        peaks_bytes: Shape (num_points,), descending.
        rows: Of each list's table, shape (num_points, num_lists).
    """

    times: FloatArray
    peaks_bytes: IntArray
    rows: IntArray

    def fastest(self, cap_bytes: float) -> int | None:
        """Index of the fastest point within the cap; None where none is."""
        within = np.flatnonzero(self.peaks_bytes <= cap_bytes)
        return int(within[0]) if len(within) else None


@dataclass(frozen=True)
class _Partial:
    """Choices for some of the last lists. Heights are bytes over those alive where the first of these lists begins.

    Attributes:
        times: What the choices add to the step.
        forward_heights: Most bytes alive from there until the forward pass is through.
        backward_heights: Most bytes alive from then until these lists are through backward.
        residues: Bytes alive at that point.
        rows: Shape (num_choices, num_lists chosen so far), in the order of the lists.
    """

    times: FloatArray
    forward_heights: IntArray
    backward_heights: IntArray
    residues: IntArray
    rows: IntArray

    def then(self, before: Stretch, after: Stretch) -> _Partial:
        """With fixed stretches around it."""
        forward = np.maximum(before.rise_bytes, before.delta_bytes + self.forward_heights)
        backward = before.delta_bytes + np.maximum(self.backward_heights, self.residues + after.rise_bytes)
        residues = before.delta_bytes + self.residues + after.delta_bytes
        return _Partial(self.times, forward, backward, residues, self.rows)

    @property
    def heights(self) -> IntArray:
        heights: IntArray = np.maximum(self.forward_heights, self.backward_heights)
        return heights


@dataclass(frozen=True)
class _Level:
    """One list within the step: what runs before it (inside the list before) and after, and its own terms."""

    before: Stretch
    after: Stretch
    terms: ListTerms


@dataclass(frozen=True)
class _StepLevels:
    """A step cut into levels, the first list outermost.

    Attributes:
        order: Index of the list at each level.
        head: What ends the forward pass, after the last block: head and loss. What lingers is freed at its end.
        turn: What runs from there to the first block's backward.
    """

    order: tuple[int, ...]
    levels: tuple[_Level, ...]
    head: Stretch
    turn: Stretch
    static_bytes: int
    update: Stretch


class PlacementSolver:
    """Answers for one model and one search.

    Args:
        timeline: Must not refuse (``profile.refusal`` is None).

    Raises:
        NotNestedError: The blocks of different lists run by turns, or those of a list in forward only.
    """

    def __init__(self, choices: SearchChoices, features: PlacementFeatures, timeline: MemoryTimeline) -> None:
        self._choices = choices
        self._features = features
        self._tables = [PlacementTable(i, of, features) for i, of in enumerate(choices.block_lists)]
        self._steps = [self._cut(timeline.step_profile(batch.micro_batch_size), timeline) for batch in features.batches]

    def front(self, batch_index: int, weights: TimeWeights) -> SolvedFront:
        """All placements worth having at one micro-batch size, for one set of weights."""
        step = self._steps[batch_index]
        costs = [
            table.features.shares @ weights.prices[batch_index] + table.features.tilts @ weights.tilts[batch_index]
            for table in self._tables
        ]
        partial = _start(step)
        for list_index, level in zip(reversed(step.order), reversed(step.levels), strict=True):
            partial = _pruned(_combined(costs[list_index], level, partial))
        return self._finished(step, partial, weights.base[batch_index])

    def candidates(self, weights: Sequence[TimeWeights], cap_bytes: float) -> Candidates:
        if self._all is not None:
            return self._all
        found: dict[tuple[int, tuple[int, ...]], float] = {}
        for number, of_draw in enumerate(weights[:_MOST_SOLVED]):
            for batch_index in range(len(self._steps)):
                front = self.front(batch_index, of_draw)
                fastest = front.fastest(cap_bytes)
                # The whole front of the first weights, the mean; of the others their answer for the cap.
                points = range(len(front.times)) if number == 0 else [] if fastest is None else [fastest]
                for point in points:
                    found[batch_index, tuple(int(row) for row in front.rows[point])] = float(front.peaks_bytes[point])
        return self._as_candidates(list(found), np.array(list(found.values())))

    @cached_property
    def _all(self) -> Candidates | None:
        """Every policy; None where they are too many."""
        num_placements = int(np.prod([float(len(table)) for table in self._tables]))
        if num_placements * len(self._steps) > _MOST_LISTED:
            return None
        rows: list[tuple[int, tuple[int, ...]]] = []
        peaks: list[IntArray] = []
        for batch_index, step in enumerate(self._steps):
            partial = _start(step)
            for list_index, level in zip(reversed(step.order), reversed(step.levels), strict=True):
                partial = _combined(np.zeros(len(self._tables[list_index])), level, partial)
            ordered = self._in_list_order(step, partial.rows)
            rows += [(batch_index, tuple(int(row) for row in of_point)) for of_point in ordered]
            peaks.append(_peaks(step, partial))
        return self._as_candidates(rows, np.concatenate(peaks).astype(np.float64))

    def _as_candidates(self, rows: list[tuple[int, tuple[int, ...]]], peaks_bytes: FloatArray) -> Candidates:
        of_lists = np.array([of_point for _, of_point in rows], dtype=np.int64).reshape(len(rows), len(self._tables))
        shares = np.zeros((len(rows), self._features.num_labels))
        tilts = np.zeros_like(shares)
        for list_index, table in enumerate(self._tables):
            shares += table.features.shares[of_lists[:, list_index]]
            tilts += table.features.tilts[of_lists[:, list_index]]
        batch_indices = np.array([batch_index for batch_index, _ in rows], dtype=np.int64)
        if not self._features.has_rng_label:
            return Candidates(batch_indices, ListFeatures(shares, tilts), peaks_bytes, lambda i: self._policy(*rows[i]))
        # Without the state of the generators a region keeps a few kilobytes less: the same peak is on the safe side.
        without_rng = shares.copy()
        without_rng[:, -1] = shares.sum(axis=1)
        recomputes = np.flatnonzero(shares.sum(axis=1) > 0)

        def policy(index: int) -> RecomputePolicy:
            if index < len(rows):
                return self._policy(*rows[index])
            return self._policy(*rows[recomputes[index - len(rows)]], preserve_rng_state=False)

        return Candidates(
            np.concatenate([batch_indices, batch_indices[recomputes]]),
            ListFeatures(np.vstack([shares, without_rng[recomputes]]), np.vstack([tilts, tilts[recomputes]])),
            np.concatenate([peaks_bytes, peaks_bytes[recomputes]]),
            policy,
        )

    def _policy(
        self, batch_index: int, rows: tuple[int, ...], *, preserve_rng_state: bool | None = None
    ) -> RecomputePolicy:
        placement = tuple(table.placement(row) for table, row in zip(self._tables, rows, strict=True))
        preserve = self._choices.rng_choices[0] if preserve_rng_state is None else preserve_rng_state
        reshard = self._choices.reshard_choices[0]
        batch = self._features.batches[batch_index]
        return RecomputePolicy(batch, placement, preserve, reshard_after_forward=reshard).canonical()

    def policy(self, front: SolvedFront, batch_index: int, point: int) -> RecomputePolicy:
        """The canonical policy at a point of a solved front."""
        return self._policy(batch_index, tuple(int(row) for row in front.rows[point]))

    def _finished(self, step: _StepLevels, partial: _Partial, base: float) -> SolvedFront:
        peaks = _peaks(step, partial)
        rows = self._in_list_order(step, partial.rows)
        order = np.lexsort((peaks, partial.times))
        best = np.minimum.accumulate(peaks[order])
        keep = order[np.concatenate([[True], peaks[order][1:] < best[:-1]])]
        return SolvedFront(base + partial.times[keep], peaks[keep], rows[keep])

    def _in_list_order(self, step: _StepLevels, rows: IntArray) -> IntArray:
        """Rows with a column per list; lists that never run are left plain, which is row 0."""
        ordered = np.zeros((len(rows), len(self._tables)), dtype=np.int64)
        ordered[:, list(step.order)] = rows
        return ordered

    def _cut(self, step: StepProfile, timeline: MemoryTimeline) -> _StepLevels:
        order, fixed, forward, backward = _nested(step.moments)
        levels = []
        for level, list_index in enumerate(order):
            table = self._tables[list_index]
            terms = table.terms(step.lists[list_index], timeline.cell, forward[level], backward[level])
            levels.append(_Level(*fixed[level], terms))
        head, turn = fixed[len(order)]
        return _StepLevels(tuple(order), tuple(levels), head, turn, step.static_bytes, step.update)


def _start(step: _StepLevels) -> _Partial:
    none: FloatArray = np.zeros(1)
    head, turn = step.head, step.turn
    return _Partial(
        none,
        np.array([head.rise_bytes], dtype=np.int64),
        np.array([head.delta_bytes + turn.rise_bytes], dtype=np.int64),
        np.array([head.delta_bytes + turn.delta_bytes], dtype=np.int64),
        np.zeros((1, 0), dtype=np.int64),
    )


def _combined(costs: FloatArray, level: _Level, inner: _Partial) -> _Partial:
    """Every placement of a list with every choice for the lists after it."""
    terms = level.terms
    kept = terms.forward_delta[:, None]
    lingering = terms.lingering[:, None]
    forward = np.maximum(terms.forward_rise[:, None], kept + lingering + inner.forward_heights[None, :])
    above = np.maximum(inner.backward_heights[None, :], inner.residues[None, :] + terms.backward_rise[:, None])
    residues = kept + inner.residues[None, :] + terms.backward_delta[:, None]
    own, others = np.indices(forward.shape).reshape(2, -1)
    rows = np.hstack([own[:, None], inner.rows[others]])
    times = (costs[:, None] + inner.times[None, :]).ravel()
    combined = _Partial(times, forward.ravel(), (kept + above).ravel(), residues.ravel(), rows)
    return combined.then(level.before, level.after)


def _pruned(partial: _Partial) -> _Partial:
    """Without choices that another one beats in time and height, at the same residue.

    Where something lingers, the height of the forward pass grows by more than that of backward with each list before,
    so that a choice which is pruned could in rare cases have been a little better.
    """
    residues = partial.residues
    distinct = np.unique(residues)
    if len(distinct) > _MOST_RESIDUES:
        groups = np.digitize(residues, np.linspace(distinct[0], distinct[-1], _MOST_RESIDUES))
    else:
        groups = np.searchsorted(distinct, residues)
    order = np.lexsort((partial.heights, partial.times, groups))
    keep = []
    for group in np.unique(groups):
        members = order[groups[order] == group]
        heights = partial.heights[members]
        lowest = np.minimum.accumulate(heights)
        keep.append(members[np.concatenate([[True], heights[1:] < lowest[:-1]])])
    kept = np.concatenate(keep)
    return _Partial(
        partial.times[kept],
        partial.forward_heights[kept],
        partial.backward_heights[kept],
        residues[kept],
        partial.rows[kept],
    )


def _peaks(step: _StepLevels, partial: _Partial) -> IntArray:
    update_peak = partial.residues + step.update.rise_bytes
    peaks: IntArray = step.static_bytes + np.maximum(np.maximum(partial.heights, update_peak), 0)
    return peaks


def _nested(
    moments: Sequence[Moment],
) -> tuple[list[int], list[tuple[Stretch, Stretch]], list[list[Moment]], list[list[Moment]]]:
    """Cuts a step into lists that contain one another.

    Returns:
        The lists from the outermost inwards; the fixed stretches around each, before its forward and after its
        backward, and at last the two between the last forward and the first backward: head and loss, and the rest; the
        moments of each list's forward span; those of its backward span.

    Raises:
        NotNestedError: They do not.
    """
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for index, moment in enumerate(moments):
        if moment.list_index is not None:
            key = (moment.part, moment.list_index)
            spans[key] = (spans.get(key, (index, index))[0], index)
    order = sorted({list_index for _, list_index in spans}, key=lambda i: spans["forward", i][0])
    if any(("backward", i) not in spans for i in order):
        raise NotNestedError("no backward comes to the blocks of a list, as of one that is frozen")
    borders = [spans["forward", i] for i in order] + [spans["backward", i] for i in reversed(order)]
    if any(first <= last_before for (_, last_before), (first, _) in itertools.pairwise(borders)):
        raise NotNestedError("blocks of different lists run by turns")
    gaps = []
    position = 0
    for first, last in borders:
        gaps.append(_joined(moments[position:first]))
        position = last + 1
    gaps.append(_joined(moments[position:]))
    depth = len(order)
    fixed = [(gaps[level], gaps[2 * depth - level]) for level in range(depth)]
    # The head is the first moment after the last block's forward.
    turn_begins, turn_ends = (borders[depth - 1][1] + 1, borders[depth][0]) if depth else (0, len(moments))
    head_ends = min(turn_begins + 1, turn_ends)
    fixed.append((_joined(moments[turn_begins:head_ends]), _joined(moments[head_ends:turn_ends])))
    forward = [list(moments[first : last + 1]) for first, last in borders[:depth]]
    backward = [list(moments[first : last + 1]) for first, last in reversed(borders[depth:])]
    return order, fixed, forward, backward


def _joined(moments: Sequence[Moment]) -> Stretch:
    """Fixed stretches, one after another."""
    alive = rise = 0
    for moment in moments:
        assert moment.stretch is not None, "only fixed moments lie between lists"
        rise = max(rise, alive + moment.stretch.rise_bytes)
        alive += moment.stretch.delta_bytes
    return Stretch(alive, rise)
