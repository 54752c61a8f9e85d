"""Which of many predicted policies are worth showing: the cheapest, the front, and a selection of a long front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from search_spaces.policy import RecomputePolicy

#: Rows of a front that a person reads.
MOST_ROWS = 12


@dataclass(frozen=True)
class Candidate:
    """A policy that is made only once it is chosen.

    Attributes:
        time: Predicted, in a unit that is the same for all; between micro-batch sizes it may say nothing.
    """

    micro_batch_size: int
    peak_bytes: int
    time: float
    make_policy: Callable[[], RecomputePolicy]


def cheapest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The one of least time; of those as fast the largest micro-batch, then the least memory. None of none."""
    return min(candidates, key=lambda each: (each.time, -each.micro_batch_size, each.peak_bytes), default=None)


def front_of(candidates: Iterable[Candidate], *, sizes_compare: bool) -> list[Candidate]:
    """Candidates that no other one beats in peak and time at once.

    Args:
        sizes_compare: True where times of different micro-batch sizes can be compared. Otherwise only those of the same
            or a larger size can beat one: a larger micro-batch is hardly ever slower.

    Returns:
        In order of peak, the highest first; where sizes do not compare, by size first, the largest first.
    """
    by_size = sorted(candidates, key=lambda each: 0 if sizes_compare else -each.micro_batch_size)
    front: list[Candidate] = []
    for _, of_size in groupby(by_size, key=lambda each: 0 if sizes_compare else each.micro_batch_size):
        own = set(map(id, of_size_list := list(of_size)))
        unbeaten = _unbeaten([*front, *of_size_list])
        front += [each for each in unbeaten if id(each) in own]
    return front


def thinned(front: Sequence[Candidate], *, sizes_compare: bool) -> list[Candidate]:
    """At most `MOST_ROWS` of a front, spread evenly over each micro-batch size where sizes do not compare."""
    groups = [list(g) for _, g in groupby(front, key=lambda each: 0 if sizes_compare else each.micro_batch_size)]
    per_group = max(1, MOST_ROWS // max(len(groups), 1))
    chosen: list[Candidate] = []
    for group in groups[:MOST_ROWS]:
        places = np.unique(np.linspace(0, len(group) - 1, min(per_group, len(group))).round().astype(int))
        chosen += [group[place] for place in places]
    return chosen


def _unbeaten(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The front in order of peak, the highest first; of equals the first one given."""
    kept: list[Candidate] = []
    for each in sorted(candidates, key=lambda each: (each.peak_bytes, each.time)):
        if not kept or each.time < kept[-1].time:
            kept.append(each)
    return kept[::-1]
