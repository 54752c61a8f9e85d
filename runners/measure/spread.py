"""How well a median is known. Plain Python: the driver uses it, too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

#: Standard error of a median over that of a mean, for normal noise: sqrt(pi / 2).
_MEDIAN_FACTOR = 1.2533
#: Standard deviation over median absolute deviation, for normal noise.
_MAD_FACTOR = 1.4826


def median_standard_error(values: Sequence[float]) -> float:
    """Standard error of the median, from the median absolute deviation; unit of the values. NaN for fewer than two."""
    if len(values) < 2:
        return math.nan
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return _MEDIAN_FACTOR * _MAD_FACTOR * deviation / math.sqrt(len(values))
