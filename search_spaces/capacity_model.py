"""A model for teaching: what recompute saves and costs in a chain of layers that are all alike.

It explains why segments help and where they stop helping. No search decides by it: trials are measured.

What it leaves out, each of which can outweigh what it says:

* the input and the logits, whose gradient is often the worst moment of a step with recompute;
* gradients, parameters and optimizer states, which recompute does not touch;
* the working set of the running kernels: scratch memory and the gradients of activations;
* what is needed twice: the first layer of a rebuilt segment counts its input although the boundary holds it already;
* early stop: a rebuild ends with the last tensor that backward needs, so it costs a little less than a forward pass;
* layers that differ, and units within a layer;
* the allocator, which rounds sizes up and may hold more than is in use.
"""

from __future__ import annotations


def plain_activation_bytes(num_layers: int, internal_bytes: int) -> int:
    """Bytes that the layers hold when forward ends and nothing is recomputed: ``num_layers * internal_bytes``.

    Args:
        internal_bytes: What one layer keeps for its backward, its input included where it needs that.

    Raises:
        ValueError: A count below 1 or a negative size.
    """
    _check(num_layers=num_layers, internal_bytes=internal_bytes)
    return num_layers * internal_bytes


def segmented_activation_bytes(num_layers: int, segment_size: int, boundary_bytes: int, internal_bytes: int) -> int:
    """Most bytes that the layers hold at once when every segment of them is recomputed.

    Forward keeps one boundary per segment. Backward takes the segments from the last to the first; for each it rebuilds
    the internals of its layers, uses them, and gives them back together with the boundary. So the worst moment is that
    of the last segment, or of the one before where the last is shorter::

        max over segments s = 1, 2, ...:  s * boundary_bytes + layers in s * internal_bytes

    With as many layers in each, that is ``num_layers / k * boundary_bytes + k * internal_bytes`` for segments of ``k``,
    smallest at ``k = sqrt(num_layers * boundary_bytes / internal_bytes)`` (Chen et al. 2016, arXiv:1604.06174).

    Args:
        segment_size: Layers per segment; the last one is shorter where it does not divide ``num_layers``.
        boundary_bytes: The tensor that one layer hands to the next.
        internal_bytes: What one layer keeps for its backward, as in :func:`plain_activation_bytes`.

    Raises:
        ValueError: A count below 1, a segment longer than the chain, or a negative size.

    Example:
        >>> mib = 2**20
        >>> plain_activation_bytes(12, 64 * mib) // mib
        768
        >>> segmented_activation_bytes(12, 3, 64 * mib, 64 * mib) // mib
        448
    """
    _check(num_layers=num_layers, internal_bytes=internal_bytes, boundary_bytes=boundary_bytes)
    if not 1 <= segment_size <= num_layers:
        raise ValueError(f"segment_size is {segment_size}; 1 to num_layers, {num_layers}, is allowed")
    firsts = range(0, num_layers, segment_size)
    lengths = [min(segment_size, num_layers - first) for first in firsts]
    return max(
        num_boundaries * boundary_bytes + length * internal_bytes
        for num_boundaries, length in enumerate(lengths, start=1)
    )


def recompute_step_time_s(forward_time_s: float, backward_time_s: float, recomputed_ratio: float = 1.0) -> float:
    """Seconds of one forward and backward when a share of the forward pass runs twice.

    Args:
        recomputed_ratio: Share of the forward pass that is rebuilt; 1 recomputes all of it.

    Raises:
        ValueError: A negative time, or a share outside 0 to 1.

    Example:
        >>> recompute_step_time_s(0.030, 0.060)
        0.12
    """
    for name, value in (("forward_time_s", forward_time_s), ("backward_time_s", backward_time_s)):
        if not value >= 0:
            raise ValueError(f"{name} is {value}; 0 or more is allowed")
    if not 0 <= recomputed_ratio <= 1:
        raise ValueError(f"recomputed_ratio is {recomputed_ratio}; 0 to 1 is allowed")
    return forward_time_s + backward_time_s + recomputed_ratio * forward_time_s


def _check(*, num_layers: int, **sizes_bytes: int) -> None:
    if num_layers < 1:
        raise ValueError(f"num_layers is {num_layers}; at least 1 is allowed")
    for name, size in sizes_bytes.items():
        if size < 0:
            raise ValueError(f"{name} is {size}; 0 or more is allowed")
