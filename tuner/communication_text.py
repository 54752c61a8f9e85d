"""What ranks sent each other in a step, in words."""

from __future__ import annotations

from runners.parallel.records import CollectiveCount, Communication
from tuner.memory_size import format_bytes

#: What each kind of collective is called, in the order in which they are told.
COLLECTIVES = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "point_to_point": "point-to-point transfer",
    "other": "other collective",
}


def communication_text(communication: Communication) -> str:
    """``36 all-gathers (1.6 MiB) and 5 reduce-scatters (219.2 KiB) per step; recompute adds none``."""
    counts: dict[str, CollectiveCount] = {kind: getattr(communication, kind) for kind in COLLECTIVES}
    parts = [
        f"{_counted(count.calls, COLLECTIVES[kind])} ({format_bytes(count.bytes)})"
        for kind, count in counts.items()
        if count.calls
    ]
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
    return f"{listed or 'nothing'} per step; {_added(counts)}"


def _added(counts: dict[str, CollectiveCount]) -> str:
    added = {kind: count.calls_added_by_recompute for kind, count in counts.items()}
    if all(calls is None for calls in added.values()):
        return "what recompute adds was not measured"
    texts = [f"{calls:+d} {COLLECTIVES[kind]}{_plural(calls)}" for kind, calls in added.items() if calls]
    return f"recompute adds {', '.join(texts) or 'none'}"


def _counted(calls: int, name: str) -> str:
    return f"{calls} {name}{_plural(calls)}"


def _plural(calls: int) -> str:
    return "" if abs(calls) == 1 else "s"
