"""The workload of a study: a place where models come from, a place where batches come from, one seed and one dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runners.base import WorkloadError
from runners.workloads.base import BatchMaker, ModelSource
from runners.workloads.output import loss_of, loss_weight_of
from runners.workloads.seeding import kept_random_state, seed_everything

#: Types that a parameter may be trained in; others (say, packed integers of a quantized layer) are left as they are.
PARAMETER_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


class ConfiguredWorkload:
    """What `runners.workloads.base.Workload` asks for, as search.yaml names it.

    Args:
        batches: The user's own batches; None takes those that the source knows.
    """

    def __init__(
        self, source: ModelSource, *, batches: BatchMaker | None, dtype: torch.dtype, seed: int, factory: str
    ) -> None:
        self._source = source
        self._given_batches = batches
        self._known_batches: BatchMaker | None = None
        self._dtype = dtype
        self._seed = seed
        self._factory = factory

    @property
    def tokens_per_sample(self) -> int | None:
        return self._source.tokens_per_sample

    def build_model(self) -> nn.Module:
        seed_everything(self._seed)
        model = self._source.build()
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise WorkloadError(
                f"model.factory is {self._factory}, which returned a {type(model).__name__} without a parameter that "
                "requires a gradient; there is nothing to train"
            )
        _convert(model, self._dtype)
        if self._given_batches is None:
            self._known_batches = self._source.batch_maker(model, self._rebuild)
        return model

    def make_batch(self, micro_batch_size: int) -> dict[str, Any]:
        if self._given_batches is not None:
            return self._given_batches(micro_batch_size)
        if self._known_batches is None:
            self._rebuild()
        assert self._known_batches is not None
        return self._known_batches(micro_batch_size)

    def loss_of(self, output: Any) -> torch.Tensor:
        return loss_of(output)

    def loss_weight_of(self, output: Any) -> torch.Tensor | None:
        return loss_weight_of(output)

    def _rebuild(self) -> nn.Module:
        with kept_random_state():
            return self.build_model()


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Gives every parameter the dtype, and buffers with it where parameters change; ties stay ties."""
    known = set(PARAMETER_DTYPES.values())
    if all(p.dtype == dtype for p in model.parameters() if p.dtype in known):
        return
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in known:
            tensor.data = tensor.data.to(dtype)
