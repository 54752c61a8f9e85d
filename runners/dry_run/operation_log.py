"""The operations of one stretch, and the most bytes alive within it as they run where no mode watches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Operation:
    """One operation as it was seen.

    Attributes:
        before_bytes: Alive before it.
        highest_bytes: Most bytes alive while it ran.
        sums_up: Backward added up gradients of what was used several times, and the first of the two was let go at
            once: where no mode is on, that one is added to in place (torch 2.13).
    """

    operator: Any
    before_bytes: int
    highest_bytes: int
    sums_up: bool = False


def highest_bytes(operations: Sequence[Operation]) -> int:
    """Most bytes alive within any of the operations; 0 where there are none."""
    highest, follower = 0, None
    for operation in reversed(operations):
        is_in_place = operation.sums_up or _adds_mask(operation, follower)
        highest = max(highest, operation.before_bytes if is_in_place else operation.highest_bytes)
        follower = operation.operator
    return highest


def _adds_mask(operation: Operation, follower: Any) -> bool:
    """Whether attention adds its mask here: into a new tensor under a mode, in place without one (torch 2.13).

    Args:
        follower: The operator that ran next: the softmax, if so.
    """
    return operation.operator is _ATEN.add.Tensor and follower is _ATEN._safe_softmax.default
