"""Which of many points a figure draws: of those that would lie on one another, one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point")

#: On a figure of 1,000 by 500 pixels the places are 12 pixels apart, about as wide as a marker.
_NUM_COLUMNS, _NUM_ROWS = 80, 40
#: So few are drawn in no time, and each can be hovered over.
_FEW = 300


def distinct_points(points: Sequence[Point], places: Sequence[tuple[float, float]]) -> list[Point]:
    """The points in the same order, without those that lie on an earlier one; all of them where they are few.

    Args:
        places: Coordinates of each point, shape (num_points, 2), finite.
    """
    if len(points) <= _FEW:
        return list(points)
    columns = _cells([x for x, _ in places], _NUM_COLUMNS)
    rows = _cells([y for _, y in places], _NUM_ROWS)
    first_in_cell: dict[tuple[int, int], Point] = {}
    for cell, point in zip(zip(columns, rows, strict=True), points, strict=True):
        first_in_cell.setdefault(cell, point)
    return list(first_in_cell.values())


def _cells(values: Sequence[float], num_cells: int) -> list[int]:
    least, width = min(values), (max(values) - min(values)) / num_cells
    return [0 if width == 0 else int((value - least) / width) for value in values]
