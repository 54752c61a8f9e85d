"""How many times as fast one thing is as another that was timed in turn with it, on a machine that others use as well.

Plain Python: the driver uses it, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from runners.measure.spread import Center, center_of_ratios

#: A round is calm where each step in it got this share of the processor time that such a step gets undisturbed.
_CALM_SHARE = 0.9
#: Place of the undisturbed ones among the shares of a series: the highest may be a freak of the clocks.
_UNDISTURBED_QUANTILE = 0.9
#: With fewer calm rounds all are compared.
_LEAST_CALM = 5


def compare_speeds(
    times_s: Sequence[float], other_times_s: Sequence[float], processor_shares: Sequence[Sequence[float]] = ()
) -> Center:
    """Speed of one over that of the other, from the calm rounds of a series.

    Args:
        times_s: Of each round; shape (num_rounds,).
        other_times_s: Of the other, taken right before or after, same shape.
        processor_shares: As in `calm_rounds`.

    Raises:
        ValueError: There is no round.
    """
    calm = calm_rounds(len(times_s), processor_shares)
    return center_of_ratios([other_times_s[index] / times_s[index] for index in calm])


def calm_rounds(num_rounds: int, processor_shares: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the rounds in which nobody else took the processor; all where there are too few, or nothing is known.

    A round is never chosen by its times: the one of two policies whose steps scatter more would gain by that. What a
    neighbour takes shows in the processor time that the steps got over the time that passed.

    Args:
        processor_shares: Series of processor seconds over wall seconds, each of shape (num_rounds,). They are compared
            within a series only: what a policy uses of a quiet machine is its own affair.
    """
    limits = [_CALM_SHARE * _undisturbed(shares) for shares in processor_shares]
    calm = [
        index
        for index in range(num_rounds)
        if all(shares[index] >= limit for shares, limit in zip(processor_shares, limits, strict=True))
    ]
    return calm if len(calm) >= _LEAST_CALM else list(range(num_rounds))


def _undisturbed(shares: Sequence[float]) -> float:
    return sorted(shares)[math.ceil(_UNDISTURBED_QUANTILE * (len(shares) - 1))]
