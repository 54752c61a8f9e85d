"""What the ranks send each other in one optimizer step, and what of it recompute adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runners.parallel.collective_counter import CollectiveCounts, Kind, count_collectives
from runners.parallel.records import CollectiveCount, Communication
from runners.rig import Rig


def measure_communication(
    rig: Rig, micro_batches: Sequence[Mapping[str, Any]], *, plain: Sequence[Mapping[str, Any]] | None
) -> Communication:
    """Counts one step, warmed up already and left so, as this rank takes part in it; every rank has to call it.

    What recompute adds is the difference between two passes over a few micro-batches, with the policy and without,
    scaled to those of the step. The model is divided alike in both.

    Args:
        plain: Micro-batches at which the model fits without the policy: one, or as many as fill a pipeline. None
            leaves that comparison out.
    """
    step = rig.step
    added = None if plain is None else _added(rig, plain)
    scale = 1.0 if plain is None else len(micro_batches) / len(plain)
    if step.parallel.schedule is not None:
        step.run(micro_batches)  # The comparison may have taken its schedule, and a new one first asks what is sent.
    whole = count_collectives(lambda: step.run(micro_batches), rig.phases)

    def count(kind: Kind) -> CollectiveCount:
        counted = whole.of(kind)
        return CollectiveCount(
            calls=counted.calls,
            bytes=counted.num_bytes,
            calls_in_recompute=counted.calls_in_recompute,
            calls_added_by_recompute=None if added is None else round(scale * added.of(kind).calls),
            bytes_added_by_recompute=None if added is None else round(scale * added.of(kind).num_bytes),
        )

    return Communication(
        all_gather=count("all_gather"),
        reduce_scatter=count("reduce_scatter"),
        all_reduce=count("all_reduce"),
        point_to_point=count("point_to_point"),
        other=count("other"),
    )


def _added(rig: Rig, micro_batches: Sequence[Mapping[str, Any]]) -> CollectiveCounts:
    """Of one pass over the micro-batches: with the policy less without."""
    with_policy = _one_pass(rig, micro_batches)
    with rig.placed(None):
        plain = _one_pass(rig, micro_batches)
    difference = CollectiveCounts()
    for kind in {*with_policy.by_kind, *plain.by_kind}:
        difference.of(kind).calls = with_policy.of(kind).calls - plain.of(kind).calls
        difference.of(kind).num_bytes = with_policy.of(kind).num_bytes - plain.of(kind).num_bytes
    return difference


def _one_pass(rig: Rig, micro_batches: Sequence[Mapping[str, Any]]) -> CollectiveCounts:
    if rig.step.parallel.schedule is not None:
        rig.step.accumulate(micro_batches)  # As above.
    counts = count_collectives(lambda: rig.step.accumulate(micro_batches), rig.phases)
    rig.step.drop_gradients()
    return counts
