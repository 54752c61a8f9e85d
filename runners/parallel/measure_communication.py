"""What the ranks send each other in one optimizer step, and what of it recompute adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runners.parallel.collective_counter import CollectiveCounts, Kind, count_collectives
from runners.parallel.records import CollectiveCount, Communication
from runners.rig import Rig


def measure_communication(
    rig: Rig, micro_batches: Sequence[Mapping[str, Any]], *, plain_micro_batch: Mapping[str, Any] | None
) -> Communication:
    """Counts one step, warmed up already, as this rank takes part in it; every rank has to call it.

    What recompute adds is the difference between two passes over one micro-batch, with the policy and without, times
    the micro-batches of the step. The model is divided alike in both.

    Args:
        plain_micro_batch: One at which the model fits without the policy; None leaves that comparison out.
    """
    step = rig.step
    whole = count_collectives(lambda: step.run(micro_batches), rig.phases)
    added = None if plain_micro_batch is None else _added(rig, plain_micro_batch)
    num_passes = len(micro_batches)

    def count(kind: Kind) -> CollectiveCount:
        counted = whole.of(kind)
        return CollectiveCount(
            calls=counted.calls,
            bytes=counted.num_bytes,
            calls_in_recompute=counted.calls_in_recompute,
            calls_added_by_recompute=None if added is None else num_passes * added.of(kind).calls,
            bytes_added_by_recompute=None if added is None else num_passes * added.of(kind).num_bytes,
        )

    return Communication(
        all_gather=count("all_gather"),
        reduce_scatter=count("reduce_scatter"),
        all_reduce=count("all_reduce"),
        other=count("other"),
    )


def _added(rig: Rig, micro_batch: Mapping[str, Any]) -> CollectiveCounts:
    """Of one pass over the micro-batch: with the policy less without."""
    with_policy = _one_pass(rig, micro_batch)
    with rig.placed(None):
        plain = _one_pass(rig, micro_batch)
    difference = CollectiveCounts()
    for kind in {*with_policy.by_kind, *plain.by_kind}:
        difference.of(kind).calls = with_policy.of(kind).calls - plain.of(kind).calls
        difference.of(kind).num_bytes = with_policy.of(kind).num_bytes - plain.of(kind).num_bytes
    return difference


def _one_pass(rig: Rig, micro_batch: Mapping[str, Any]) -> CollectiveCounts:
    counts = count_collectives(lambda: rig.step.accumulate([micro_batch]), rig.phases)
    rig.step.drop_gradients()
    return counts
