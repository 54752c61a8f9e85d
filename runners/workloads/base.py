"""The seams of this room: what a trial asks of a workload, and what a workload asks of the place a model comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

#: Makes a batch of so many samples of so many tokens each: the keyword arguments of one call of the model, on the CPU.
#: The length is None where search.yaml names none.
BatchMaker = Callable[[int, int | None], dict[str, Any]]


class Workload(Protocol):
    """A model and its data, ready to be trained; the model is called as ``model(**batch)``."""

    @property
    def tokens_per_sample(self) -> int | float | None:
        """Tokens of one sample, padding included, the mean of several lengths; None where samples are not sequences."""

    def build_model(self) -> nn.Module:
        """A fresh model on the CPU, built under the workload's seed; modes are as the factory left them.

        Raises:
            WorkloadError: The factory cannot be used as named. An out-of-memory error passes unchanged.
        """

    def make_batch(self, micro_batch_size: int, sequence_length: int | None = None) -> dict[str, Any]:
        """A new batch of so many samples on the CPU.

        Drawn from the global random generators: who needs the same batch twice seeds them before.

        Args:
            sequence_length: One of the lengths of search.yaml; None is the longest.

        Raises:
            WorkloadError: The batch cannot be made. An out-of-memory error passes unchanged.
        """

    def loss_of(self, output: Any) -> torch.Tensor:
        """The scalar loss in what the model returned.

        Raises:
            WorkloadError: There is none; the message says what was returned and what is allowed.
        """

    def loss_weight_of(self, output: Any) -> torch.Tensor | None:
        """How much this micro-batch's loss counts (say, its number of valid tokens); None where all count alike."""


class ModelSource(Protocol):
    """One kind of ``model.factory``."""

    @property
    def reads_sequences(self) -> bool:
        """Whether a sample is a row of tokens, as many as ``batch.sequence_length`` says."""

    def build(self) -> nn.Module:
        """A fresh model; the random generators are seeded already.

        Raises:
            WorkloadError: The model cannot be built as named.
        """

    def batch_maker(self, model: nn.Module, rebuild: Callable[[], nn.Module]) -> BatchMaker:
        """Makes batches that fit the model, and does not keep the model alive.

        Args:
            rebuild: Builds the model once more, without a trace in the random generators.

        Raises:
            WorkloadError: It is not known what the model is trained on.
        """
