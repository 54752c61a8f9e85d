"""One process that trains alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from search_spaces.policy import RecomputePolicy


class SingleModel:
    """The model as it is."""

    gradient_bucket_bytes = 0
    schedule = None

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, **inputs: Any) -> Any:
        return self._model(**inputs)

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext()

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def whole_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, p.grad) for name, p in self._model.named_parameters() if p.grad is not None)

    def whole_buffers(self) -> dict[str, torch.Tensor]:
        return dict(self._model.named_buffers())

    def takes(self, policy: RecomputePolicy | None) -> bool:
        return True
