"""Data parallel: each rank holds the whole model, and gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from search_spaces.policy import RecomputePolicy


class DdpModel:
    """The model inside torch's DistributedDataParallel, with its defaults.

    Policies are placed on the inner model, whose modules are the same: they can be exchanged at any time.
    """

    schedule = None

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._size = dist.get_world_size()
        device_ids = None if device.type == "cpu" else [device]
        self._wrapped = DistributedDataParallel(model, device_ids=device_ids)
        # Buckets are apart from the gradients (gradient_as_bucket_view is off by default) and hold each of them once.
        self.gradient_bucket_bytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)

    def __call__(self, **inputs: Any) -> Any:
        return self._wrapped(**inputs)

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if is_last else self._wrapped.no_sync()

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total / self._size

    def whole_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, p.grad) for name, p in self._model.named_parameters() if p.grad is not None)

    def whole_buffers(self) -> dict[str, torch.Tensor]:
        return dict(self._model.named_buffers())

    def takes(self, policy: RecomputePolicy | None) -> bool:
        return True
