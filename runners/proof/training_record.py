"""What a short training run leaves to compare: losses, gradients, buffers, parameters with a gradient, RNG streams."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runners.devices.base import Device
from runners.measure.training_step import TrainingStep
from runners.parallel.ranks import ALONE, Ranks
from runners.proof.randomness import stream_digests
from runners.proof.tensor_log import TensorLog


@dataclass(frozen=True)
class TrainingRecord:
    """One run, ready to be compared with another of the same steps.

    Of several ranks each has a record of its own: its buffers and random streams, and on the first rank what they all
    made together, which is the mean loss and the whole gradients.

    Attributes:
        losses: Loss of each step, shape (num_steps,), mean over ranks; empty on all ranks but the first.
        gradients: Entries ``(step, parameter name)`` as ``"0 h.1.weight"``; none on all ranks but the first.
        buffers: Buffers after the last step; integer ones too.
        integer_buffers: Names among them that count rather than average.
        dtype: Lowest precision that took part.
    """

    losses: tuple[float, ...]
    gradients: TensorLog
    buffers: TensorLog
    integer_buffers: frozenset[str]
    random_streams: dict[str, str]
    dtype: torch.dtype

    @property
    def num_steps(self) -> int:
        return len(self.losses)

    def close(self) -> None:
        self.gradients.close()
        self.buffers.close()


def record_training(
    step: TrainingStep,
    batches: Sequence[Sequence[Mapping[str, Any]]],
    *,
    device: Device,
    dtype: torch.dtype,
    ranks: Ranks = ALONE,
    update: bool = True,
    before_micro_batch: Callable[[], None] | None = None,
) -> TrainingRecord:
    """Trains on the batches, one optimizer step each, and keeps what a comparison needs.

    Args:
        batches: Micro-batches of each step that are this rank's.
        ranks: Those that train; all of them have to record.
        update: False leaves out the optimizer, so that every step starts from the same parameters.
    """
    gradients, buffers = TensorLog(), TensorLog()
    losses: list[float] = []

    def keep_gradients(_: nn.Module) -> None:
        index = len(losses)
        for name, gradient in step.parallel.whole_gradients():
            if ranks.rank == 0:
                gradients.write([(f"{index} {name}", gradient)])

    for micro_batches in batches:
        if update:
            loss = step.run(micro_batches, gradients_ready=keep_gradients, before_micro_batch=before_micro_batch)
        else:
            loss = step.accumulate(micro_batches, before_micro_batch=before_micro_batch)
            keep_gradients(step.model)
            step.drop_gradients()
        losses.append(statistics.fmean(ranks.gather(loss)))
    named_buffers = step.parallel.whole_buffers()
    buffers.write(named_buffers.items())
    integer = frozenset(name for name, buffer in named_buffers.items() if not buffer.is_floating_point())
    own_losses = tuple(losses) if ranks.rank == 0 else ()
    return TrainingRecord(own_losses, gradients, buffers, integer, stream_digests(device), dtype)
