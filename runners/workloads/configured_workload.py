"""The workload of a study: a place where models come from, a place where batches come from, one seed and one dtype."""

from __future__ import annotations

from collections.abc import Sequence
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
        sequence_lengths: Those that search.yaml names, ascending.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        batches: BatchMaker | None,
        sequence_lengths: Sequence[int],
        dtype: torch.dtype,
        seed: int,
        factory: str,
    ) -> None:
        self._source = source
        self._lengths = tuple(sequence_lengths)
        self._lengths_are_checked = len(self._lengths) < 2
        self._given_batches = batches
        self._known_batches: BatchMaker | None = None
        self._dtype = dtype
        self._seed = seed
        self._factory = factory

    @property
    def tokens_per_sample(self) -> int | float | None:
        if not self._lengths or not self._source.reads_sequences:
            return None
        mean = sum(self._lengths) / len(self._lengths)
        return int(mean) if mean.is_integer() else mean

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

    def make_batch(self, micro_batch_size: int, sequence_length: int | None = None) -> dict[str, Any]:
        make = self._batch_maker()
        if not self._lengths_are_checked:
            self._check_lengths(make, micro_batch_size)
        return make(micro_batch_size, self._longest if sequence_length is None else sequence_length)

    def loss_of(self, output: Any) -> torch.Tensor:
        return loss_of(output)

    def loss_weight_of(self, output: Any) -> torch.Tensor | None:
        return loss_weight_of(output)

    @property
    def _longest(self) -> int | None:
        return max(self._lengths, default=None)

    def _batch_maker(self) -> BatchMaker:
        if self._given_batches is not None:
            return self._given_batches
        if self._known_batches is None:
            self._rebuild()
        assert self._known_batches is not None
        return self._known_batches

    def _check_lengths(self, make: BatchMaker, micro_batch_size: int) -> None:
        """Refuses a list of lengths where batches do not follow them: the mix would be timed as what it is not."""
        sizes = []
        for length in (min(self._lengths), max(self._lengths)):
            with kept_random_state():
                sizes.append(_num_elements(make(micro_batch_size, length)))
        if sizes[0] >= sizes[1]:
            raise WorkloadError(
                f"batch.sequence_length is {list(self._lengths)}, but batches of the shortest are as large as those of "
                f"the longest, {sizes[1]} elements at micro-batch {micro_batch_size}; name one length, or batches that "
                "follow it"
            )
        self._lengths_are_checked = True

    def _rebuild(self) -> nn.Module:
        with kept_random_state():
            return self.build_model()


def _num_elements(batch: dict[str, Any]) -> int:
    leaves = torch.utils._pytree.tree_leaves(batch)
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Gives every parameter the dtype, and buffers with it where parameters change; ties stay ties."""
    known = set(PARAMETER_DTYPES.values())
    if all(p.dtype == dtype for p in model.parameters() if p.dtype in known):
        return
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in known:
            tensor.data = tensor.data.to(dtype)
