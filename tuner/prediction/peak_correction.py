"""How far measured peaks lie from predicted ones, and so which predicted peak is still safe under the cap."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: Before anything was measured, relative to the peak; predictions on CPU are far better than this.
_UNKNOWN_MARGIN = 0.01
#: While a single trial was measured, which says nothing about how much the ratio varies.
_SINGLE_MARGIN = 0.0005
#: Trials that may agree by chance. While there are no more, the ratio is taken to vary by this share of what it is off
#: by, over their number: an allocator that adds 1 % adds another per cent to another policy.
_FEW, _SHARE_THAT_VARIES = 2, 0.5
#: Trials up to which the next ratio may lie as far above the largest as that lies above the smallest; the more there
#: are beyond, the less.
_RANGE_DOUBLES = 4
#: A device that refused memory says only that the peak is over the cap; it is taken to be over it by this much.
_REFUSED_MARGIN = 0.02
#: Share by which the largest ratio to be expected lies above the typical one where predictions are of little use.
_VAGUE = 0.1


@dataclass(frozen=True)
class PeakPair:
    """A predicted and a measured peak of one policy.

    Attributes:
        refused: The device refused the memory: the measured peak is the cap, and the true one is above it.
    """

    predicted_bytes: float
    measured_bytes: float
    refused: bool = False


@dataclass(frozen=True)
class PeakCorrection:
    """Attributes:
    ratio: Typical measured peak over predicted one.
    worst_ratio: The largest that is to be expected.
    best_ratio: The smallest that cannot be ruled out.
    """

    ratio: float
    worst_ratio: float
    best_ratio: float

    @classmethod
    def fit(cls, pairs: Sequence[PeakPair], *, prior_error: float) -> PeakCorrection:
        """What the pairs say.

        Args:
            prior_error: Relative error that predictions are known to have among themselves.
        """
        measured = [pair.measured_bytes / pair.predicted_bytes for pair in pairs if not pair.refused]
        ratio = statistics.median(measured) if measured else 1.0
        margin = _UNKNOWN_MARGIN if not measured else _SINGLE_MARGIN if len(measured) == 1 else 0.0
        if 0 < len(measured) <= _FEW:
            margin = max(margin, _SHARE_THAT_VARIES * abs(ratio - 1) / len(measured))
        spread = max(measured, default=0.0) - min(measured, default=0.0)
        beyond = spread * min(1.0, _RANGE_DOUBLES / max(1, len(measured)))
        worst = max(measured, default=1.0) * (1 + prior_error + margin + beyond)
        # What was refused has a ratio above this one; news only where none so large was measured.
        refused = max((pair.measured_bytes / pair.predicted_bytes for pair in pairs if pair.refused), default=0.0)
        least = min(measured, default=1.0)
        # A few that are all far above 1 may be of what is predicted worst.
        best = (min(least, 1.0) if len(measured) <= _FEW else least) * (1 - prior_error)
        return cls(ratio, max(worst, refused * (1 + _REFUSED_MARGIN) if refused > worst else 0.0), best)

    @property
    def is_vague(self) -> bool:
        """True where predicted peaks say little about measured ones."""
        return self.worst_ratio > (1 + _VAGUE) * self.ratio
