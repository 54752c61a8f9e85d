"""What blocks of given classes do to memory under an action: as traced, or put together from what was traced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from itertools import chain, pairwise

from search_spaces.memory_profile import Cell, ListProfile, Stretch
from search_spaces.policy import BLOCK, NONE, SEGMENT


class ListCells:
    """Cells of one list of blocks.

    A segment that was not traced with these very classes is put together: forward as its blocks would run one by one
    under ``block`` with every output kept, backward as all of them plainly forward and then backward. What that leaves
    out (outputs handed on within the segment, one state of the random generators instead of several) is taken from the
    traced segments, in a straight line over their lengths: exact where blocks are alike, and nearly so where the
    segment holds the odd block at the end of the list.
    """

    def __init__(self, profile: ListProfile) -> None:
        self._path = profile.path
        self._cells = {(cell.classes, cell.action): cell for cell in profile.cells}
        self._segments = [cell for cell in profile.cells if cell.action == SEGMENT]
        self._traced_lengths = sorted({len(cell.classes) for cell in self._segments})
        self._corrections: dict[int, tuple[Stretch, Stretch]] = {}

    def cell(self, classes: tuple[int, ...], action: str) -> Cell:
        """The cell of blocks of these classes.

        Raises:
            ValueError: A block of such a class was never traced under the action.
        """
        key = (classes, action)
        if key not in self._cells:
            if action != SEGMENT:
                raise ValueError(
                    f"{self._path}: no block of its kind was traced under action {action}; a profile knows the actions "
                    "that it was made for"
                )
            forward, backward = self._assembled(classes)
            forward_rest, backward_rest = self._correction(len(classes))
            lingering = sum(self.cell((kind,), BLOCK).lingering_bytes for kind in classes)
            self._cells[key] = Cell(
                classes, action, _sum(forward, forward_rest), _sum(backward, backward_rest), lingering
            )
        return self._cells[key]

    def _assembled(self, classes: tuple[int, ...]) -> tuple[Stretch, Stretch]:
        plain = [self.cell((kind,), NONE) for kind in classes]
        whole = [self.cell((kind,), BLOCK) for kind in classes]
        run = joined(cell.forward for cell in whole)
        kept = whole[-1].forward.delta_bytes
        rebuilt = joined(chain((cell.forward for cell in plain), (cell.backward for cell in reversed(plain))))
        forward = Stretch(kept, run.rise_bytes, run.flops)
        return forward, Stretch(
            rebuilt.delta_bytes - kept, rebuilt.rise_bytes, rebuilt.flops, gradient_bytes=rebuilt.gradient_bytes
        )

    def _correction(self, length: int) -> tuple[Stretch, Stretch]:
        """What to add to assembled segments of this length; nothing where no segment was traced."""
        lengths = self._traced_lengths
        if length not in self._corrections:
            if length in lengths:
                correction = self._traced_correction(length)
            elif len(lengths) < 2:
                correction = self._correction(lengths[0]) if lengths else (Stretch(0, 0), Stretch(0, 0))
            else:
                below, above = next(
                    (pair for pair in pairwise(lengths) if length < pair[1]), (lengths[-2], lengths[-1])
                )
                ratio = (length - below) / (above - below)
                pairs = zip(self._correction(below), self._correction(above), strict=True)
                forward, backward = (_between(first, second, ratio) for first, second in pairs)
                correction = (forward, backward)
            self._corrections[length] = correction
        return self._corrections[length]

    def _traced_correction(self, length: int) -> tuple[Stretch, Stretch]:
        """The largest that was seen at this length: of unlike ones, the one that errs upwards."""
        differences = []
        for cell in self._segments:
            if len(cell.classes) == length:
                forward, backward = self._assembled(cell.classes)
                differences.append((_difference(cell.forward, forward), _difference(cell.backward, backward)))
        return max(differences, key=lambda pair: pair[1].rise_bytes)


def joined(stretches: Iterable[Stretch]) -> Stretch:
    """Stretches that run one after another, as one."""
    delta = rise = flops = gradients = 0
    for stretch in stretches:
        rise = max(rise, delta + stretch.rise_bytes)
        delta += stretch.delta_bytes
        flops += stretch.flops
        gradients += stretch.gradient_bytes
    return Stretch(delta, rise, flops, gradients)


def _sum(stretch: Stretch, correction: Stretch) -> Stretch:
    delta = stretch.delta_bytes + correction.delta_bytes
    rise = max(stretch.rise_bytes + correction.rise_bytes, delta, 0)
    return Stretch(delta, rise, stretch.flops + correction.flops, stretch.gradient_bytes + correction.gradient_bytes)


def _between(first: Stretch, second: Stretch, ratio: float) -> Stretch:
    """The straight line through both; at 0 the first, at 1 the second."""
    pairs = zip(astuple(first), astuple(second), strict=True)
    return Stretch(*(round(low + ratio * (high - low)) for low, high in pairs))


def _difference(stretch: Stretch, other: Stretch) -> Stretch:
    return Stretch(*(own - others for own, others in zip(astuple(stretch), astuple(other), strict=True)))
