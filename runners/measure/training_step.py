"""One whole optimizer step at the global batch, as the user's training loop would take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from runners.measure.phases import Phase, PhaseSwitch
from runners.parallel.base import ParallelModel
from runners.parallel.single import SingleModel
from runners.workloads.base import Workload

#: Called with the model after the last backward of a step, when all gradients are complete.
GradientsReady = Callable[[nn.Module], None]


class TrainingStep:
    """Forward, backward over all accumulation steps, then the update; gradients are dropped afterwards.

    Args:
        phases: Told when each part of the step begins and ends.
        autocast: Lower precision of the forward pass; None runs it as the parameters are.
        parallel: The model as its ranks train it; None trains it in this process alone.

    Attributes:
        reduces_each: Gradients are reduced over ranks after every micro-batch instead of after the last one: more
            traffic for less memory.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        workload: Workload,
        *,
        device: torch.device,
        autocast: torch.dtype | None,
        phases: PhaseSwitch,
        parallel: ParallelModel | None = None,
    ) -> None:
        self.model = model
        self.parallel: ParallelModel = parallel or SingleModel(model)
        self.optimizer = optimizer
        self.phases = phases
        self.reduces_each = False
        self._workload = workload
        self._device = device
        self._autocast = autocast

    def run(
        self,
        micro_batches: Sequence[Mapping[str, Any]],
        *,
        before_micro_batch: Callable[[], None] | None = None,
        gradients_ready: GradientsReady | None = None,
    ) -> float:
        """Takes one optimizer step and gives back its loss, averaged over this rank's micro-batches."""
        loss = self.accumulate(micro_batches, before_micro_batch=before_micro_batch)
        if gradients_ready is not None:
            gradients_ready(self.model)
        with self.phases.phase(Phase.OPTIMIZER):
            self.optimizer.step()
            self.drop_gradients()
        return loss

    def accumulate(
        self, micro_batches: Sequence[Mapping[str, Any]], *, before_micro_batch: Callable[[], None] | None = None
    ) -> float:
        """Accumulates the gradients of the micro-batches, without an update; gives back the averaged loss.

        Where the model's output names a ``loss_weight`` (say, its count of valid tokens), it weights the average.
        """
        if self.parallel.schedule is not None:
            return self.parallel.schedule.accumulate(micro_batches, self._forward, self.phases, before_micro_batch)
        losses: list[torch.Tensor] = []
        weights: list[torch.Tensor] = []
        for index, micro_batch in enumerate(micro_batches):
            if before_micro_batch is not None:
                before_micro_batch()
            with self.parallel.micro_batch(is_last=self.reduces_each or index == len(micro_batches) - 1):
                with self.phases.phase(Phase.FORWARD):
                    loss, weight = self._forward(micro_batch)
                with self.phases.phase(Phase.BACKWARD):
                    (loss / len(micro_batches) if weight is None else loss * weight).backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
                    # A copy: what `mse_loss` returns stands in a store as large as its input (torch 2.13, CPU).
                    losses.append(loss.detach().clone())
                    if weight is not None:
                        weights.append(weight.detach())
                    del loss, weight  # With them goes the graph: taking it down is part of backward.
        values = torch.stack(losses).double()
        if not weights:
            return float(values.mean())
        # Ranks average their gradients, whatever their weights are: what is divided by is the mean of their totals.
        total = self.parallel.mean_over_ranks(torch.stack(weights).double().sum())
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, float(total))
        return float((values * torch.stack(weights)).sum() / total)

    def drop_gradients(self) -> None:
        """Frees all gradients, those of parameters that no optimizer holds included."""
        self.model.zero_grad(set_to_none=True)

    def forward(self, micro_batch: Mapping[str, Any]) -> torch.Tensor:
        """The loss of one micro-batch, with its graph."""
        return self._forward(micro_batch)[0]

    def _forward(self, micro_batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        with self._precision():
            inputs = to_device(micro_batch, self._device)
            output = self.parallel(**inputs)
            return self._workload.loss_of(output), self._workload.loss_weight_of(output)

    def _precision(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)


def to_device(value: Any, device: torch.device) -> Any:
    """The same nest of dicts, lists and tuples with every tensor on the device."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), value)
