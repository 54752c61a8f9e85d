"""Whether batches follow the micro-batch size; where they do not, throughput would count samples that nobody made."""

from __future__ import annotations

from typing import Any

import torch

from runners.base import WorkloadError
from runners.workloads.base import Workload
from runners.workloads.seeding import kept_random_state


def refuse_fixed_batches(workload: Workload, micro_batch_size: int, other_size: int) -> None:
    """Makes a batch of either size; the random state is what it was.

    Raises:
        WorkloadError: Their tensors have the same shapes, or batches cannot be made at all.
    """
    with kept_random_state():
        shapes, others = (_shapes(workload.make_batch(size)) for size in (micro_batch_size, other_size))
    if shapes and shapes == others:
        raise WorkloadError(
            f"batches do not follow the micro-batch size: those of {micro_batch_size} and of {other_size} samples both "
            f"hold tensors of {', '.join(map(str, shapes[:3]))}, and what is measured would be counted as samples that "
            "are not there; return as many samples as micro_batch_size says (batch.factory, or the model's "
            "example_batch)"
        )


def _shapes(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    leaves = torch.utils._pytree.tree_leaves(batch)
    return [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]
