"""The peak of any policy, added up from traced stretches in well under a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from search_spaces.cell_profiles import ListCells
from search_spaces.gathered_step import GatheredStep, gathered_cell, largest_block
from search_spaces.gathering import Gathering
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, StepProfile, Stretch
from search_spaces.policy import (
    BLOCK,
    NONE,
    OFFLOAD,
    SEGMENT,
    BlockListPlacement,
    RecomputePolicy,
    Region,
    normal_action,
)

#: Finds the cell of blocks of these classes under an action, as :meth:`MemoryTimeline.cell` does.
CellProfiles: TypeAlias = Callable[[ListProfile, tuple[int, ...], str], Cell]
_Array: TypeAlias = npt.NDArray[np.int64]

#: Rows of an array of stretches; its columns are the stretches in order, and a last one for what never runs.
_DELTA, _RISE, _FLOPS, _LINGERING = range(_NUM_ROWS := 4)


@dataclass(frozen=True)
class PlacedStretches:
    """The stretches of a step, one for each moment; what lingers is in none of the others.

    Attributes:
        end_of_forward: Index of the last moment of the forward pass.
        delta_bytes: Shape (num_moments,), as are the others.
    """

    profile: StepProfile
    end_of_forward: int
    delta_bytes: _Array
    rise_bytes: _Array
    flops: _Array
    lingering_bytes: _Array


class MemoryTimeline:
    """Computes peaks from a profile.

    The peak of a step is its static bytes, plus what the stretches so far have left alive, plus how far memory rises
    within the worst one. A policy exchanges the stretches of the blocks that it places; nothing else changes.

    Args:
        profile: One that does not refuse; otherwise peaks may be far off, and a dry run has to be asked instead.
    """

    def __init__(self, profile: MemoryProfile) -> None:
        self.profile = profile
        self._steps: dict[int, _Step] = {}
        self._cells: dict[int, tuple[ListProfile, ListCells]] = {}
        #: As large as all groups of a divided model are taken to be by those who add up cells.
        self._single = largest_block(profile.steps[0]) if profile.gathering is not None else None

    def peak_bytes(self, policy: RecomputePolicy) -> int:
        """Most bytes alive in an optimizer step.

        Raises:
            ValueError: The policy's micro-batch size lies outside of those traced, or an action was not traced.
        """
        return int(self.highest_bytes(policy).max())

    def highest_bytes(self, policy: RecomputePolicy) -> npt.NDArray[np.int64]:
        """Most bytes alive within each moment of a step, and within its update; shape (num_moments + 1,).

        Raises:
            ValueError: As `peak_bytes`.
        """
        step = self._step(policy)
        stretches = self._placed(step, policy)
        alive = np.cumsum(stretches[_DELTA])
        highest: _Array = alive - stretches[_DELTA] + stretches[_RISE]
        highest[-1] = alive[-1] + step.profile.update.rise_bytes
        return highest + step.profile.static_bytes

    def flops(self, policy: RecomputePolicy) -> tuple[int, int]:
        """FLOPs of an optimizer step: what plain training takes, and what rebuilds add to it."""
        step = self._step(policy)
        plain = int(step.plain[_FLOPS].sum())
        placed = int(self._placed(step, policy)[_FLOPS].sum())
        times = policy.batch.gradient_accumulation_steps
        return times * plain, times * (placed - plain)

    def placed_stretches(self, policy: RecomputePolicy) -> PlacedStretches:
        """The stretches of a step under the policy, for who adds them up otherwise.

        Raises:
            ValueError: As `peak_bytes`.
        """
        step = self._step(policy)
        delta, rise, flops, lingering = self._with_regions(step, policy)[:, :-1]
        return PlacedStretches(step.profile, step.end_of_forward, delta, rise, flops, lingering)

    def step_profile(self, micro_batch_size: int) -> StepProfile:
        """The profile at that size: as traced, or in a straight line between the traced sizes around it.

        What a stretch leaves is a straight line in the size. How far it rises bends upwards where another moment
        within it becomes the highest, so the line between two sizes lies on it or above: never too low.

        Of a divided model fixed stretches hold what is gathered where all its blocks are alike.

        Raises:
            ValueError: No traced sizes enclose it.
        """
        step = self._step_at(micro_batch_size)
        return step.profile if step.gathered is None else step.gathered.typical

    def cell(self, profile: ListProfile, classes: tuple[int, ...], action: str) -> Cell:
        """What blocks of these classes do under the action, in a list of one of the step profiles.

        Of a divided model with what is gathered for them among blocks of their kind.

        Raises:
            ValueError: The action was not traced.
        """
        cell = self._cell_alone(profile, classes, action)
        gathering = self.profile.gathering
        if gathering is None or self._single is None:
            return cell
        return gathered_cell(cell, profile, gathering, self._single)

    def _cell_alone(self, profile: ListProfile, classes: tuple[int, ...], action: str) -> Cell:
        key = id(profile)  # Hashing a profile of many blocks would take longer than the look-up.
        if key not in self._cells:
            self._cells[key] = (profile, ListCells(profile))
        return self._cells[key][1].cell(classes, action)

    def _placed(self, step: _Step, policy: RecomputePolicy) -> _Array:
        """The stretches of a step under the policy, with what lingers until the end of forward."""
        stretches = self._with_regions(step, policy)
        lingering = stretches[_LINGERING]
        stretches[_DELTA] += lingering
        stretches[_DELTA, step.end_of_forward] -= lingering.sum()
        if step.gathered is not None:
            step.gathered.apply(policy, stretches[_DELTA], stretches[_RISE])
        return stretches

    def _with_regions(self, step: _Step, policy: RecomputePolicy) -> _Array:
        stretches = step.plain.copy()
        rng_bytes = self.profile.rng_state_bytes * (policy.preserve_rng_state - self.profile.preserve_rng_state)
        for placement in policy.placement:
            arrays = step.list_of(placement)
            for region in placement.regions:
                if region.action != NONE:
                    arrays.place(region, stretches, rng_bytes)
        stretches[:, -1] = 0
        return stretches

    def _step(self, policy: RecomputePolicy) -> _Step:
        return self._step_at(policy.batch.micro_batch_size)

    def _step_at(self, micro_batch_size: int) -> _Step:
        if micro_batch_size not in self._steps:
            profile = _profile_at(self.profile.steps, micro_batch_size)
            self._steps[micro_batch_size] = _Step(profile, self._cell_alone, self.profile.gathering)
        return self._steps[micro_batch_size]


class _Step:
    """The stretches of one micro-batch as arrays.

    Attributes:
        plain: Without any recompute; shape (num_rows, num_moments + 1).
        end_of_forward: Index of the last moment of the forward pass.
        gathered: What a divided model holds besides; None where it is not divided.
    """

    def __init__(self, profile: StepProfile, cells: CellProfiles, gathering: Gathering | None) -> None:
        self.profile = profile
        self.gathered = None if gathering is None else GatheredStep(profile, gathering)
        forward = [index for index, moment in enumerate(profile.moments) if moment.part == "forward"]
        self.end_of_forward = max(forward, default=0) + 1  # Head and loss.
        self.plain: _Array = np.zeros((_NUM_ROWS, len(profile.moments) + 1), dtype=np.int64)
        for index, moment in enumerate(profile.moments):
            if moment.stretch is not None:
                self.plain[:, index] = _column(moment.stretch)
        self._lists = {
            each.path: _List(each, cells, _places(profile, index, "forward"), _places(profile, index, "backward"))
            for index, each in enumerate(profile.lists)
        }
        for arrays in self._lists.values():
            arrays.place_plainly(self.plain)
        self.plain[:, -1] = 0

    def list_of(self, placement: BlockListPlacement) -> _List:
        arrays = self._lists.get(placement.blocks)
        if arrays is None:
            known = ", ".join(self._lists) or "none"
            raise ValueError(f"placement of {placement.blocks}: no such list of blocks was traced; traced are {known}")
        return arrays


class _List:
    """What the blocks of one list do under each action, as arrays over their calls."""

    def __init__(self, profile: ListProfile, cells: CellProfiles, forward_at: _Array, backward_at: _Array) -> None:
        self._profile = profile
        self._cells = cells
        self._forward_at = forward_at
        self._backward_at = backward_at
        self._blocks = np.array(profile.blocks, dtype=np.int64)
        self._by_action: dict[str, tuple[_Array, _Array]] = {}
        self._by_length: dict[int, tuple[_Array, _Array]] = {}

    def place_plainly(self, stretches: _Array) -> None:
        self._write(stretches, np.arange(len(self._blocks)), self._of_action(NONE), 0)

    def place(self, region: Region, stretches: _Array, rng_bytes: int) -> None:
        """Writes the region's stretches over those that are there; each recompute region keeps `rng_bytes` more."""
        calls = np.flatnonzero((self._blocks >= region.first) & (self._blocks <= region.last))
        if region.action != SEGMENT:
            action = normal_action(region.action)
            num_regions = 0 if region.action == OFFLOAD else max(len(set(region.unit_names())), 1)
            self._write(stretches, calls, self._of_action(action), num_regions * rng_bytes)
            return
        assert region.segment_size is not None
        num_whole, rest = divmod(len(calls), region.segment_size)
        stretches[:, self._forward_at[calls]] = 0  # A later block of a segment runs with the first one.
        stretches[:, self._backward_at[calls]] = 0
        starts = calls[:: region.segment_size]
        for some, length in ((starts[:num_whole], region.segment_size), (starts[num_whole:], rest)):
            if len(some):
                self._write(stretches, some, self._of_segments(length), rng_bytes)

    def _write(self, stretches: _Array, calls: _Array, arrays: tuple[_Array, _Array], kept_bytes: int) -> None:
        forward, backward = arrays
        stretches[:, self._forward_at[calls]] = forward[:, calls]
        stretches[:, self._backward_at[calls]] = backward[:, calls]
        if kept_bytes:
            stretches[_DELTA, self._forward_at[calls]] += kept_bytes
            stretches[_DELTA, self._backward_at[calls]] -= kept_bytes

    def _of_action(self, action: str) -> tuple[_Array, _Array]:
        """Forward and backward of each call, shapes (num_rows, num_calls)."""
        if action not in self._by_action:
            self._by_action[action] = self._columns([(kind,) for kind in self._profile.classes], action)
        return self._by_action[action]

    def _of_segments(self, length: int) -> tuple[_Array, _Array]:
        """Forward and backward of a segment that begins at each call; shorter where the list ends."""
        if length == 1:
            return self._of_action(BLOCK)
        if length not in self._by_length:
            classes = self._profile.classes
            tuples = [classes[first : first + length] for first in range(len(classes))]
            self._by_length[length] = self._columns(tuples, SEGMENT)
        return self._by_length[length]

    def _columns(self, classes: list[tuple[int, ...]], action: str) -> tuple[_Array, _Array]:
        # Of blocks in a row at most a few are unlike the others, so there are few distinct cells.
        cells = {
            each: self._cells(self._profile, each, BLOCK if len(each) == 1 and action == SEGMENT else action)
            for each in set(classes)
        }
        forward = [_column(cells[each].forward, cells[each].lingering_bytes) for each in classes]
        backward = [_column(cells[each].backward) for each in classes]
        return np.array(forward, dtype=np.int64).T, np.array(backward, dtype=np.int64).T


def _profile_at(steps: tuple[StepProfile, ...], micro_batch_size: int) -> StepProfile:
    exact = next((step for step in steps if step.micro_batch_size == micro_batch_size), None)
    if exact is not None:
        return exact
    accumulating = [step for step in steps if step.accumulates]
    for below, above in pairwise(accumulating):
        if below.micro_batch_size < micro_batch_size < above.micro_batch_size:
            return _profile_between(below, above, micro_batch_size)
    sizes = ", ".join(str(step.micro_batch_size) for step in steps) or "none"
    raise ValueError(f"micro_batch_size is {micro_batch_size}, which no traced sizes enclose; traced are {sizes}")


def _profile_between(below: StepProfile, above: StepProfile, micro_batch_size: int) -> StepProfile:
    span = above.micro_batch_size - below.micro_batch_size
    line = _Line(above.micro_batch_size - micro_batch_size, micro_batch_size - below.micro_batch_size, span)
    moments = (
        first if first.stretch is None or second.stretch is None
        else replace(
            first,
            stretch=line.stretch(first.stretch, second.stretch),
            released_bytes=line.at(first.released_bytes, second.released_bytes),
            shared_bytes=line.at(first.shared_bytes, second.shared_bytes),
        )
        for first, second in zip(below.moments, above.moments, strict=True)
    )  # fmt: skip
    lists = (_list_between(first, second, line) for first, second in zip(below.lists, above.lists, strict=True))
    return replace(
        below,
        micro_batch_size=micro_batch_size,
        static_bytes=line.at(below.static_bytes, above.static_bytes),
        moments=tuple(moments),
        lists=tuple(lists),
    )


def _list_between(below: ListProfile, above: ListProfile, line: _Line) -> ListProfile:
    upper = {(cell.classes, cell.action): cell for cell in above.cells}
    pairs = ((cell, upper.get((cell.classes, cell.action))) for cell in below.cells)
    cells = (
        Cell(
            first.classes,
            first.action,
            line.stretch(first.forward, second.forward),
            line.stretch(first.backward, second.backward),
            line.at(first.lingering_bytes, second.lingering_bytes),
        )
        for first, second in pairs
        if second is not None
    )
    return replace(below, cells=tuple(cells))


class _Line:
    """The straight line between two sizes, rounded up."""

    def __init__(self, weight_below: int, weight_above: int, span: int) -> None:
        self._weights = (weight_below, weight_above)
        self._span = span

    def at(self, below: int, above: int) -> int:
        weighted = below * self._weights[0] + above * self._weights[1]
        return -(-weighted // self._span)

    def stretch(self, below: Stretch, above: Stretch) -> Stretch:
        return Stretch(
            self.at(below.delta_bytes, above.delta_bytes),
            self.at(below.rise_bytes, above.rise_bytes),
            self.at(below.flops, above.flops),
            self.at(below.gradient_bytes, above.gradient_bytes),
        )


def _column(stretch: Stretch, lingering_bytes: int = 0) -> tuple[int, ...]:
    return stretch.delta_bytes, stretch.rise_bytes, stretch.flops, lingering_bytes


def _places(profile: StepProfile, list_index: int, part: str) -> _Array:
    """Index of the moment of each call; the last column for a call that has none, where no gradient comes through."""
    places = np.full(len(profile.lists[list_index].blocks), len(profile.moments), dtype=np.int64)
    for index, moment in enumerate(profile.moments):
        if moment.part == part and moment.list_index == list_index:
            places[moment.call] = index
    return places
