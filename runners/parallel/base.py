"""The seam between a training step and the way its ranks work together. One file per strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from search_spaces.policy import RecomputePolicy


class ParallelModel(Protocol):
    """A model as its ranks train it. The model itself keeps its names and stays reachable where it was."""

    #: Bytes of gradients in transit that stay allocated between steps, and that no Python object refers to.
    gradient_bucket_bytes: int

    def __call__(self, **inputs: Any) -> Any:
        """The model's output on this rank's samples."""

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch; gradients are reduced over ranks in the last one only."""

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """The mean of the ranks' values; every rank has to call it."""

    def whole_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and gradient of each parameter that has one, as one process would hold it; every rank has to iterate."""

    def takes(self, policy: RecomputePolicy | None) -> bool:
        """Whether the policy can be placed on the model as it is divided; another one needs a model divided anew."""
