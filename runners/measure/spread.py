"""How well a median is known. Plain Python: the driver uses it, too."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median_standard_error(values: Sequence[float]) -> float:
    """Standard error of the median; unit of the values. NaN for fewer than two.

    Half the distance of the order statistics that stand sqrt(n) / 2 places below and above the median. That holds for
    any distribution, since the number of values under the true median is binomial with standard deviation sqrt(n) / 2.
    (Step times on a shared machine often have two humps; the median absolute deviation, which looks at the nearer half
    of the values only, calls those steady.)
    """
    count = len(values)
    if count < 2:
        return math.nan
    ordered = sorted(values)
    places = min(math.sqrt(count), count - 1) / 2
    middle = (count - 1) / 2
    return (_at(ordered, middle + places) - _at(ordered, middle - places)) / 2


def _at(ordered: Sequence[float], position: float) -> float:
    """The value at a position that may lie between two."""
    below = min(int(position), len(ordered) - 2)
    share = position - below
    return ordered[below] * (1 - share) + ordered[below + 1] * share
