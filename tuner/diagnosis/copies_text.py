"""What is said of copies to the host, which offloading lives on."""

from __future__ import annotations

from collections.abc import Iterator

from runners.measure.copy_times import HostCopies, PlainForward
from tuner.memory_size import format_bytes


def copies_text(copies: HostCopies, forward: PlainForward) -> Iterator[str]:
    """How fast they are, and how much of them a forward pass hides."""
    to_host, from_host = map(_speed, (copies.to_host_bytes_per_s, copies.from_host_bytes_per_s))
    yield f"offload: copies go to the host at {to_host} and come back at {from_host}."
    if not copies.run_beside:
        yield "  Host and device are the same memory here, so offloading takes time and saves nothing."
        return
    hidden_bytes = int(copies.to_host_bytes_per_s * forward.time_s)
    yield (
        f"  They run beside the computation: a forward pass at micro-batch {forward.micro_batch_size} "
        f"({1000 * forward.time_s:.4g} ms) can hide {format_bytes(hidden_bytes)} of copies to the host. What is moved "
        "beyond that adds to the step."
    )


def _speed(bytes_per_s: float) -> str:
    return f"{format_bytes(int(bytes_per_s))}/s"
