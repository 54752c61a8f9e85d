"""The seam between a training step and the way its ranks work together. One file per strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from runners.measure.phases import PhaseSwitch
from search_spaces.policy import RecomputePolicy

#: Runs forward of one micro-batch: its loss with the graph, and the weight of that loss where the model names one.
ForwardMicroBatch = Callable[[Mapping[str, Any]], tuple[torch.Tensor, torch.Tensor | None]]


class MicroBatchSchedule(Protocol):
    """Runs the micro-batches of a step in an order of its own."""

    #: Micro-batches of which this rank held activations at once, in the last step.
    most_in_flight: int

    def accumulate(
        self,
        micro_batches: Sequence[Mapping[str, Any]],
        forward: ForwardMicroBatch,
        phases: PhaseSwitch,
        before_micro_batch: Callable[[], None] | None,
    ) -> float:
        """Accumulates the gradients of the micro-batches; gives back the averaged loss, on all ranks."""


class ParallelModel(Protocol):
    """A model as its ranks train it. The model itself keeps its names and stays reachable where it was."""

    #: Bytes of gradients in transit that stay allocated between steps, and that no Python object refers to.
    gradient_bucket_bytes: int

    @property
    def schedule(self) -> MicroBatchSchedule | None:
        """None where each micro-batch runs forward and then backward before the next one."""

    def __call__(self, **inputs: Any) -> Any:
        """The model's output on this rank's samples."""

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch; gradients are reduced over ranks in the last one only."""

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """The mean of the ranks' values; every rank has to call it."""

    def whole_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and gradient of each parameter that has one, as one process would hold it; every rank has to iterate."""

    def whole_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers by name: on the first rank those of the whole model, on others their own; every rank has to ask."""

    def takes(self, policy: RecomputePolicy | None) -> bool:
        """Whether the policy can be placed on the model as it is divided; another one needs a model divided anew."""
