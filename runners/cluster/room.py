"""How many trials of a study the nodes of a cluster can run now; nodes that turned out slow are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runners.base import RunnerError
from runners.cluster.nodes import (
    alive_nodes,
    amounts,
    default_resources,
    fitting,
    num_free_slots,
    num_slots,
    of_one_kind,
    total_resources,
)


def checked_resources(
    asked: Mapping[str, float] | None, num_ranks: int | None, accelerator_type: str | None
) -> dict[str, float]:
    """What each trial, or each rank of one, gets of the cluster, all of one kind of accelerator.

    Args:
        asked: By Ray's names; None takes what suits the cluster.

    Raises:
        RunnerError: The nodes cannot give that.
    """
    nodes = alive_nodes()
    resources = dict(asked or default_resources(nodes, num_ranks or 1))
    if num_slots(nodes, resources) < (num_ranks or 1):
        ranks = "" if num_ranks is None else f" for each of {num_ranks} ranks"
        what = "no node can give that" if num_ranks is None else "the nodes cannot give that"
        raise RunnerError(
            f"runner.resources_per_trial asks {amounts(resources)}{ranks}, but {what}; the cluster has "
            f"{amounts(total_resources())} in all; ask for less or name another runner.ray_address"
        )
    return of_one_kind(resources, nodes, accelerator_type)


class ClusterRoom:
    """The nodes that trials may run on.

    Args:
        resources: Of a trial, or of each of its ranks, by Ray's names.
        num_ranks: Ranks of one trial; None where it runs in one process.
    """

    def __init__(self, resources: Mapping[str, float], num_ranks: int | None) -> None:
        self.resources = dict(resources)
        self.num_ranks = num_ranks
        self._untrusted: set[str] = set()

    def describe(self) -> str:
        """What one trial takes, for people."""
        each = amounts(self.resources)
        return each if self.num_ranks is None else f"{self.num_ranks} ranks of {each} each"

    def nodes(self) -> list[dict[str, Any]]:
        """Those alive that are trusted."""
        return [node for node in alive_nodes() if node["NodeID"] not in self._untrusted]

    def node_ids(self) -> list[str]:
        """Of those that a trial fits on."""
        return [node["NodeID"] for node in self.nodes() if fitting(node["Resources"], self.resources) >= 1]

    def num_trials(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """As many as fit on the nodes when nothing else runs there."""
        return num_slots(nodes, self.resources) // (self.num_ranks or 1)

    def num_free(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """As many as fit on the nodes beside what runs there now."""
        return num_free_slots(nodes, self.resources) // (self.num_ranks or 1)

    def distrust(self, node_id: str) -> None:
        """Leaves the node out from now on."""
        self._untrusted.add(node_id)

    def trusted_node(self) -> str | None:
        """Where the next trial must go, once some nodes are not trusted; None lets Ray spread them."""
        if not self._untrusted:
            return None
        free = {node["NodeID"]: num_free_slots([node], self.resources) for node in self.nodes()}
        return max(free, key=lambda node_id: free[node_id], default=None)
