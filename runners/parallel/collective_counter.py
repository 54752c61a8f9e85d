"""Counts the collectives that a step really starts, by kind and payload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runners.measure.phases import Phase, PhaseSwitch

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "point_to_point", "other"]

#: Namespaces of torch's collectives: those of process groups, and those that a compiler can trace.
_NAMESPACES = ("c10d", "_c10d_functional")
_KINDS: dict[str, Kind] = {
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "send": "point_to_point",
    "recv": "point_to_point",
    "recv_any_source": "point_to_point",
    "isend": "point_to_point",
    "irecv": "point_to_point",
    "batch_p2p_ops": "point_to_point",
}
#: What starts nothing: it waits for a collective, or names tensors for one.
_NO_COLLECTIVES = ("wait_tensor", "_wrap_tensor_autograd")


@dataclass
class CountedCollectives:
    """Collectives of one kind: how many, their payload in bytes, and how many of them a rebuild started."""

    calls: int = 0
    num_bytes: int = 0
    calls_in_recompute: int = 0


@dataclass
class CollectiveCounts:
    """Collectives of one run by kind."""

    by_kind: dict[Kind, CountedCollectives] = field(default_factory=dict)

    def of(self, kind: Kind) -> CountedCollectives:
        return self.by_kind.setdefault(kind, CountedCollectives())


def count_collectives(run: Callable[[], object], phases: PhaseSwitch) -> CollectiveCounts:
    """The collectives that ``run`` starts on this rank, those of autograd's backward included.

    Args:
        phases: The switch that the recompute regions report to.
    """
    counter = _Counter()
    with phases.watched_by(counter), counter:
        run()
    return counter.counts


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Sees every operator; process groups are called through operators, too, by torch's C++ code as by Python."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self.counts = CollectiveCounts()
        self._is_recomputing = False

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        before, self._is_recomputing = self._is_recomputing, self._is_recomputing or phase is Phase.RECOMPUTE
        try:
            yield
        finally:
            self._is_recomputing = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if func.namespace in _NAMESPACES and name not in _NO_COLLECTIVES:
            counted = self.counts.of(_KINDS.get(name, "other"))
            counted.calls += 1
            counted.num_bytes += _payload_bytes((*args, *(kwargs or {}).values(), output))
            counted.calls_in_recompute += self._is_recomputing
        return output


def _payload_bytes(values: Iterable[object]) -> int:
    """Bytes of the largest of a call's arguments and results: of the whole, where the others are its shards."""
    return max(sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)) for value in values)
