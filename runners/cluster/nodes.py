"""The nodes of the cluster that this process is connected to: what each has, how many trials fit, of which kind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
import ray._private.state as ray_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runners.base import RunnerError

#: Ray's own names of the resources that it treats apart from custom ones.
CPU, GPU = "CPU", "GPU"
_ACCELERATORS = (GPU, "NPU")
#: A node of accelerators has one of these resources, named after their kind; asking a trace of it keeps trials there.
KIND_PREFIX = "accelerator_type:"
_TRACE = 0.001
#: Seconds in which a node that lives does something, or Ray notices that it does not; and between two looks.
_LOSS_S, _LOOK_S = 30.0, 1.0


def alive_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray leaves it unannotated


def node_answers(node_id: str) -> bool:
    """Whether a node still does what it is asked to.

    Ray counts a node among the living until it has missed several heartbeats; what ran there is gone before that.
    """
    say_so = ray.remote(num_cpus=0, max_retries=0)(_say_so)
    answer = say_so.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()
    deadline = time.monotonic() + _LOSS_S
    while time.monotonic() < deadline and any(node["NodeID"] == node_id for node in alive_nodes()):
        done, _ = ray.wait([answer], timeout=_LOOK_S)
        if done:
            try:
                return bool(ray.get(answer))
            except ray.exceptions.RayError:
                return False
    return False


def _say_so() -> bool:
    return True


def total_resources() -> dict[str, float]:
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]  # as above


def default_resources(nodes: Sequence[Mapping[str, Any]], num_ranks: int) -> dict[str, float]:
    """Of each rank of a trial: one accelerator where the cluster has some, else its part of the CPUs of a node."""
    for accelerator in _ACCELERATORS:
        if any(node["Resources"].get(accelerator, 0) >= 1 for node in nodes):
            return {accelerator: 1.0}
    # One trial at a time on a CPU node: neighbours would distort each other's times.
    counts = [node["Resources"][CPU] for node in nodes if node["Resources"].get(CPU, 0) >= 1]
    num_cpus = min(counts, default=1.0)
    per_rank = num_cpus / -(-num_ranks // max(len(counts), 1))
    return {CPU: float(int(per_rank)) if per_rank >= 1 else per_rank}


def of_one_kind(
    resources: Mapping[str, float], nodes: Sequence[Mapping[str, Any]], kind: str | None
) -> dict[str, float]:
    """The request, narrowed to nodes whose accelerators are of one kind.

    Args:
        kind: By Ray's name, such as ``H100``; None takes the kind that most trials fit on.

    Raises:
        RunnerError: No node has accelerators of that kind; the message names those that there are.
    """
    slots = _slots_by_kind(resources, nodes)
    if kind is None:
        if not any(name in resources for name in _ACCELERATORS) or not slots:
            return dict(resources)
        kind = max(slots, key=lambda name: (slots[name], name))
    elif kind not in slots:
        raise RunnerError(
            f"runner.accelerator_type is {kind}, but no node offers {amounts(resources)} of that kind; the cluster has "
            f"{', '.join(sorted(slots)) or 'no accelerators that Ray knows the kind of'}; name one of these or null"
        )
    return {**resources, f"{KIND_PREFIX}{kind}": _TRACE}


def kinds_that_fit(resources: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kinds of accelerators, by Ray's names, that the request fits on."""
    return sorted(_slots_by_kind(resources, nodes))


def other_kinds(resources: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kinds that the request would fit on as well, were it not narrowed to one."""
    bare = {name: amount for name, amount in resources.items() if not name.startswith(KIND_PREFIX)}
    chosen = {name.removeprefix(KIND_PREFIX) for name in resources if name.startswith(KIND_PREFIX)}
    return sorted(_slots_by_kind(bare, nodes).keys() - chosen) if chosen else []


def num_slots(nodes: Iterable[Mapping[str, Any]], request: Mapping[str, float]) -> int:
    """Trials that fit on these nodes at once, were nobody else there."""
    return sum(fitting(node["Resources"], request) for node in nodes)


def num_free_slots(nodes: Iterable[Mapping[str, Any]], request: Mapping[str, float]) -> int:
    """Trials that fit on these nodes now, beside what runs there already."""
    free = ray_state.available_resources_per_node()  # type: ignore[no-untyped-call]  # as above
    return sum(fitting(free.get(node["NodeID"], {}), request) for node in nodes)


def fitting(available: Mapping[str, float], request: Mapping[str, float]) -> int:
    """How often the request fits into what one node has."""
    shares = (available.get(name, 0.0) / amount for name, amount in request.items() if amount > 0)
    # Ray counts resources in ten-thousandths: 1.0 holds ten times 0.1, whatever floating point makes of it.
    return min((int(share + 1e-4) for share in shares), default=1)


def amounts(resources: Mapping[str, float]) -> str:
    """``CPU: 2, GPU: 1`` without Ray's bookkeeping entries, and with the kind that a request is narrowed to."""
    shown = [
        f"{name}: {amount:g}"
        for name, amount in sorted(resources.items())
        if not name.startswith(("node:", KIND_PREFIX)) and name not in ("memory", "object_store_memory")
    ]
    kinds = [name.removeprefix(KIND_PREFIX) for name, amount in resources.items() if _is_trace(name, amount)]
    return (", ".join(shown) or "nothing") + (f" ({kinds[0]})" if kinds else "")


def _is_trace(name: str, amount: float) -> bool:
    return name.startswith(KIND_PREFIX) and amount <= _TRACE


def _slots_by_kind(resources: Mapping[str, float], nodes: Iterable[Mapping[str, Any]]) -> Counter[str]:
    slots: Counter[str] = Counter()
    for node in nodes:
        for name in node["Resources"]:
            if name.startswith(KIND_PREFIX):
                slots[name.removeprefix(KIND_PREFIX)] += fitting(node["Resources"], resources)
    return +slots
