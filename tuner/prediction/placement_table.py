"""Every placement of one list of blocks in the two-action encoding, with what each does to time and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from search_spaces.choices import BlockListChoices
from search_spaces.memory_profile import ListProfile, Moment, Stretch
from search_spaces.memory_timeline import CellProfiles
from search_spaces.policy import BLOCK, NONE, SEGMENT, BlockListPlacement, Region
from tuner.prediction.placement_features import IntArray, ListFeatures, PlacementFeatures, cells_of


@dataclass(frozen=True)
class ListTerms:
    """What each placement of a list does to memory at one micro-batch size, each of shape (num_placements,).

    Attributes:
        forward_delta: Bytes alive at the end of the list's forward span minus those at its start, without lingering.
        lingering: Bytes that are alive from then to the end of the whole forward pass on top of that.
        forward_rise: Most bytes alive within that span minus those at its start, lingering ones included.
        backward_delta: As above for the backward span.
        backward_rise: As above for the backward span.
    """

    forward_delta: IntArray
    lingering: IntArray
    forward_rise: IntArray
    backward_delta: IntArray
    backward_rise: IntArray


@dataclass(frozen=True)
class _Run:
    """Modules of a list from ``first`` to before ``end`` that take one action."""

    action: str
    first: int
    end: int
    segment_size: int | None = None

    def cells(self, choices: BlockListChoices) -> tuple[Region, ...]:
        """What is recomputed at once; empty where nothing is."""
        if self.action == NONE:
            return ()
        positions = [position for module in choices.modules[self.first : self.end] for position in module]
        if self.action != SEGMENT:
            return tuple(Region(position, position, self.action) for position in positions)
        return tuple(cells_of(Region(positions[0], positions[-1], SEGMENT, self.segment_size)))


class PlacementTable:
    """All distinct placements of one list that mix at most two actions, the second from some block on.

    Args:
        list_index: Of the list, in the model's order.
    """

    def __init__(self, list_index: int, choices: BlockListChoices, features: PlacementFeatures) -> None:
        self._choices = choices
        self._rows = list(dict.fromkeys(_rows(choices)))
        runs = {run for row in self._rows for run in row}
        self._cells = {run: run.cells(choices) for run in runs}
        of_runs = {run: features.of_cells(list_index, cells) for run, cells in self._cells.items()}
        self.features = ListFeatures(
            np.array([sum((of_runs[run].shares for run in row), np.zeros(features.num_labels)) for row in self._rows]),
            np.array([sum((of_runs[run].tilts for run in row), np.zeros(features.num_labels)) for row in self._rows]),
        )

    def __len__(self) -> int:
        return len(self._rows)

    def placement(self, row: int) -> BlockListPlacement:
        """The canonical placement in a row."""
        actions: list[str] = []
        for run in self._rows[row]:
            actions += [run.action] * (run.end - run.first)
        sizes = [run.segment_size for run in self._rows[row] if run.segment_size is not None]
        return self._choices.place(actions, max(sizes, default=None))

    def terms(
        self, profile: ListProfile, cells: CellProfiles, forward: list[Moment], backward: list[Moment]
    ) -> ListTerms:
        """What every row does to memory.

        Args:
            profile: Of this list at the micro-batch size in question.
            cells: Finds the traced profile of a cell.
            forward: The moments of the list's forward span, fixed ones in between included, in order.
            backward: Those of its backward span.
        """
        states = _States(profile, cells)
        plain = states.plain
        changed = {run: states.codes(cells) for run, cells in self._cells.items()}
        codes = np.tile(plain, (len(self._rows), 1))
        for index, row in enumerate(self._rows):
            for run in row:
                calls, run_codes = changed[run]
                codes[index, calls] = run_codes
        return ListTerms(*_forward_span(forward, codes, states), *_backward_span(backward, codes, states))


class _States:
    """What a call of a block can be: one of the cells that begin there, or a later block of a segment."""

    def __init__(self, profile: ListProfile, cells: CellProfiles) -> None:
        self._profile = profile
        self._find = cells
        self._index: dict[tuple[tuple[int, ...], str], int] = {}
        # A later block of a segment runs with the first one and does nothing of its own.
        self._stretches: list[tuple[Stretch, Stretch, int]] = [(Stretch(0, 0), Stretch(0, 0), 0)]
        self.plain: IntArray = np.array([self._state((kind,), NONE) for kind in profile.classes], dtype=np.int64)
        self._calls_of: Mapping[int, IntArray] = {
            block: np.flatnonzero(np.asarray(profile.blocks) == block) for block in set(profile.blocks)
        }

    def codes(self, cells: tuple[Region, ...]) -> tuple[IntArray, IntArray]:
        """The calls that the cells cover, and the state of each."""
        classes = self._profile.classes
        states: dict[int, int] = {}
        for cell in cells:
            if cell.num_blocks == 1:
                states |= {int(call): self._state((classes[call],), cell.action) for call in self._calls_of[cell.first]}
                continue
            calls = [int(self._calls_of[block][0]) for block in range(cell.first, cell.last + 1)]
            states |= dict.fromkeys(calls, 0)
            states[calls[0]] = self._state(tuple(classes[call] for call in calls), SEGMENT)
        return np.array(list(states), dtype=np.int64), np.array(list(states.values()), dtype=np.int64)

    def forward(self) -> tuple[IntArray, IntArray, IntArray]:
        """Delta, lingering bytes and rise of each state."""
        deltas, rises = _columns([forward for forward, _, _ in self._stretches])
        return deltas, np.array([lingering for _, _, lingering in self._stretches], dtype=np.int64), rises

    def backward(self) -> tuple[IntArray, IntArray]:
        """Delta and rise of each state."""
        return _columns([backward for _, backward, _ in self._stretches])

    def _state(self, classes: tuple[int, ...], action: str) -> int:
        key = (classes, action)
        if key not in self._index:
            cell = self._find(self._profile, classes, action)
            self._index[key] = len(self._stretches)
            self._stretches.append((cell.forward, cell.backward, cell.lingering_bytes))
        return self._index[key]


def _columns(stretches: list[Stretch]) -> tuple[IntArray, IntArray]:
    return (
        np.array([stretch.delta_bytes for stretch in stretches], dtype=np.int64),
        np.array([stretch.rise_bytes for stretch in stretches], dtype=np.int64),
    )


def _forward_span(moments: list[Moment], codes: IntArray, states: _States) -> tuple[IntArray, IntArray, IntArray]:
    """Delta, lingering bytes and rise of the moments one after another, for each row."""
    deltas, lingering_bytes, rises = states.forward()
    kept, lingering, rise = np.zeros((3, len(codes)), dtype=np.int64)
    for moment in moments:
        if moment.stretch is not None:
            rise = np.maximum(rise, kept + lingering + moment.stretch.rise_bytes)
            kept = kept + moment.stretch.delta_bytes
            continue
        of_call = codes[:, moment.call]
        rise = np.maximum(rise, kept + lingering + rises[of_call])
        kept = kept + deltas[of_call]
        lingering = lingering + lingering_bytes[of_call]
    return kept, lingering, rise


def _backward_span(moments: list[Moment], codes: IntArray, states: _States) -> tuple[IntArray, IntArray]:
    """Delta and rise of the moments one after another, for each row."""
    deltas, rises = states.backward()
    alive, rise = np.zeros((2, len(codes)), dtype=np.int64)
    for moment in moments:
        if moment.stretch is not None:
            rise = np.maximum(rise, alive + moment.stretch.rise_bytes)
            alive = alive + moment.stretch.delta_bytes
            continue
        of_call = codes[:, moment.call]
        rise = np.maximum(rise, alive + rises[of_call])
        alive = alive + deltas[of_call]
    return alive, rise


def _rows(choices: BlockListChoices) -> Iterator[tuple[_Run, ...]]:
    total = choices.num_modules
    for first, second in product(choices.actions, repeat=2):
        splits = [total] if first == second else range(1, total)
        sizes = choices.segment_sizes if SEGMENT in (first, second) else (None,)
        for num_first, size in product(splits, sizes):
            runs = [_run(first, 0, num_first, size)]
            if num_first < total:
                runs.append(_run(second, num_first, total, size))
            yield tuple(runs)


def _run(action: str, first: int, end: int, size: int | None) -> _Run:
    """A run in its one form: segments are no longer than the run, and those of a single block are blocks."""
    if action != SEGMENT or size is None:
        return _Run(action, first, end)
    size = min(size, end - first)
    return _Run(SEGMENT, first, end, size) if size > 1 else _Run(BLOCK, first, end)
