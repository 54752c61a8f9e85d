"""Nodes of one kind should be equally fast. Says which one is not, from the fixed work that each trial times."""

from __future__ import annotations

import statistics
from collections import defaultdict

#: A node that takes this many times as long as its peers is not trusted. Devices of one kind differ by a few percent
#: (lots, temperature), which a playoff on one node settles; what is beyond that is a fault or somebody else's load.
SLOWNESS = 1.2
#: Times that a node must be known by before it is judged: one may have met a disturbance.
_MIN_TIMES = 2


class NodeSpeeds:
    """Of the nodes of one study."""

    def __init__(self) -> None:
        self._times_s: dict[str, list[float]] = defaultdict(list)

    def add(self, node: str, time_s: float) -> None:
        """Takes in what the fixed work took on a node."""
        self._times_s[node].append(time_s)

    def slowness(self, node: str) -> float | None:
        """How many times as long the node takes as its peers do in the median, where that is too long; else None.

        Of each node the best time counts.
        """
        best = {name: min(times) for name, times in self._times_s.items() if len(times) >= _MIN_TIMES}
        peers = [time for name, time in best.items() if name != node]
        if node not in best or not peers:
            return None
        ratio = best[node] / statistics.median(peers)
        return ratio if ratio > SLOWNESS else None
