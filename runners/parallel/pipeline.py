"""Pipeline parallel: each rank holds a stage of the model, and micro-batches run through the stages by torch's 1F1B."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._pytree import tree_leaves

from runners.measure.phases import Phase, PhaseSwitch
from runners.parallel.base import ForwardMicroBatch
from runners.parallel.ranks import RankGroup
from runners.parallel.records import PipelineCut
from runners.parallel.stage_model import StageEnd, StageModel
from search_spaces.policy import BatchShape, RecomputePolicy


class PipelineModel:
    """One stage of the model. It is cut in place; its own blocks keep their places in the list.

    Args:
        policy: Of the micro-batches that will be run; those of another number or size need a model of their own, since
            torch keeps buffers for all that a stage receives in a step.
    """

    gradient_bucket_bytes = 0

    def __init__(
        self, model: nn.Module, ranks: RankGroup, cut: PipelineCut, device: torch.device, policy: RecomputePolicy | None
    ) -> None:
        self._model = model
        self._ranks = ranks
        self._device = device
        self._blocks = cut.blocks
        self._batch: BatchShape | None = None if policy is None else policy.batch
        self._stage = StageModel(model, cut, ranks.rank, device)
        model.to(device)
        # What several stages hold, tied weights above all, is one parameter in training.
        self._shared = {name: ranks.subgroup(stages) for name, stages in self._stage.shared.items()}
        self.schedule = _OneForwardOneBackward(self, ranks, self._stage, device)

    def __call__(self, **inputs: Any) -> Any:
        return self._stage.run(lambda: self._model(**inputs))

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext()

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """All ranks train on the same samples: there is nothing to average."""
        return value

    def whole_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        having = self._ranks.gather({name for name, p in self._stage.held.items() if p.grad is not None})
        for name, whole in self._stage.whole.items():
            owner = next((stage for stage in whole.stages if name in having[stage]), None)
            if owner is None:
                continue
            gradient = self._stage.held[name].grad if owner == self._ranks.rank else None
            if gradient is None:
                sent = torch.empty(whole.shape, dtype=whole.dtype, device=self._device)
            else:
                sent = (gradient.to_dense() if gradient.is_sparse else gradient).contiguous()
            dist.broadcast(sent, src=owner)
            yield name, sent

    def whole_buffers(self) -> dict[str, torch.Tensor]:
        own = dict(self._model.named_buffers())
        in_blocks = {name: buffer.cpu() for name, buffer in own.items() if name.startswith(f"{self._blocks}.")}
        of_stages = self._ranks.gather(in_blocks)
        if self._ranks.rank > 0:
            return own
        return own | {name: buffer for of_stage in of_stages[1:] for name, buffer in of_stage.items()}

    def takes(self, policy: RecomputePolicy | None) -> bool:
        return policy is None or self._batch is None or policy.batch == self._batch

    def complete_gradients(self, total_weight: float | None) -> None:
        """Adds up the gradients of what several stages hold, and divides all of them by the weight, if there is one."""
        for name, group in self._shared.items():
            parameter = self._stage.held.get(name)
            if parameter is not None and parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=group)
        if total_weight is not None:
            torch._foreach_div_([p.grad for p in self._model.parameters() if p.grad is not None], total_weight)


class _OneForwardOneBackward:
    """Runs the micro-batches of a step through this stage in torch's order.

    Attributes:
        most_in_flight: Micro-batches of which this stage held activations at once, in the last step.
    """

    def __init__(self, parallel: PipelineModel, ranks: RankGroup, stage: StageModel, device: torch.device) -> None:
        self._parallel = parallel
        self._ranks = ranks
        self._model = stage
        self._device = device
        self._prepared: tuple[object, _WatchedStage, Schedule1F1B | ScheduleGPipe] | None = None
        self.most_in_flight = 0

    def accumulate(
        self,
        micro_batches: Sequence[Mapping[str, Any]],
        forward: ForwardMicroBatch,
        phases: PhaseSwitch,
        before_micro_batch: Callable[[], None] | None,
    ) -> float:
        stage, schedule = self._prepare(micro_batches)
        stage.begin(_Step(self._model, micro_batches, forward, before_micro_batch), phases)
        # The target is asked for and not used: the stage's output is the loss already.
        schedule.step(target=torch.zeros(len(micro_batches)), return_outputs=False)
        step, self.most_in_flight = stage.end()
        total = step.total_weight()
        loss, total = self._ranks.gather((step.mean_loss(), total))[-1]
        self._parallel.complete_gradients(total)
        return loss

    def _prepare(
        self, micro_batches: Sequence[Mapping[str, Any]]
    ) -> tuple[_WatchedStage, Schedule1F1B | ScheduleGPipe]:
        """The last step's schedule where this one is alike, for its buffers; else a new one, and the old one's go."""
        shapes = [value.shape if isinstance(value, torch.Tensor) else value for value in tree_leaves(micro_batches[0])]
        key = (len(micro_batches), [str(shape) for shape in shapes])
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = None
            stage = _WatchedStage(_StageModule(), self._ranks.rank, self._ranks.size, self._device)
            # 1F1B wants as many micro-batches as stages. With fewer, all of them are in flight at once anyway.
            make = Schedule1F1B if len(micro_batches) >= self._ranks.size else ScheduleGPipe
            schedule = make(stage, len(micro_batches), loss_fn=lambda output, target: output, scale_grads=False)
            self._prepared = (key, stage, schedule)
        return self._prepared[1:]


class _Step:
    """One step's micro-batches on their way through this stage."""

    def __init__(
        self,
        model: StageModel,
        micro_batches: Sequence[Mapping[str, Any]],
        forward: ForwardMicroBatch,
        before_micro_batch: Callable[[], None] | None,
    ) -> None:
        self._model = model
        self._micro_batches = micro_batches
        self._forward = forward
        self._before = before_micro_batch
        self._losses: list[torch.Tensor] = []
        self._weights: list[torch.Tensor] = []

    def run(self, index: int, received: torch.Tensor | None) -> torch.Tensor:
        """What goes to the next stage, or what backward starts from."""
        if self._before is not None:
            self._before()
        self._model.received = received
        try:
            loss, weight = self._forward(self._micro_batches[index])
        except StageEnd as end:
            return end.hidden.contiguous()
        finally:
            self._model.received = None
        self._losses.append(loss.detach())
        if weight is None:
            return loss / len(self._micro_batches)
        self._weights.append(weight.detach())
        return loss * weight

    def forget(self) -> None:
        """Begins anew."""
        self._losses.clear()
        self._weights.clear()

    def total_weight(self) -> float | None:
        return float(torch.stack(self._weights).double().sum()) if self._weights else None

    def mean_loss(self) -> float:
        """As in one process; 0 on all stages but the last, which alone has losses."""
        if not self._losses:
            return 0.0
        values = torch.stack(self._losses).double()
        if not self._weights:
            return float(values.mean())
        weights = torch.stack(self._weights)
        return float((values * weights).sum() / weights.double().sum())


class _StageModule(nn.Module):
    """What torch calls for each micro-batch. The model is no part of it: torch has no business with its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.step: _Step | None = None
        self.index = 0

    def forward(self, *received: torch.Tensor) -> torch.Tensor:
        assert self.step is not None, "a stage runs within a step"
        return self.step.run(self.index, received[0] if received else None)


class _WatchedStage(PipelineStage):
    """Reports forward and backward of each micro-batch as phases, and counts those in flight."""

    def __init__(self, module: _StageModule, index: int, num_stages: int, device: torch.device) -> None:
        super().__init__(module, index, num_stages, device)
        self._module = module
        self._phases = PhaseSwitch()
        self._in_flight: set[int] = set()
        self._most_in_flight = 0

    def begin(self, step: _Step, phases: PhaseSwitch) -> None:
        self._module.step, self._module.index, self._phases = step, 0, phases
        self._in_flight.clear()
        self._most_in_flight = 0

    def end(self) -> tuple[_Step, int]:
        """The step, and how many of its micro-batches were in flight at once."""
        step, self._module.step = self._module.step, None
        assert step is not None, "it has begun"
        return step, self._most_in_flight

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        assert self._module.step is not None, "a stage runs within a step"
        if fwd_chunk_id == 0:
            self._module.step.forget()  # What torch ran before, to see shapes.
        self._module.index = fwd_chunk_id
        with self._phases.phase(Phase.FORWARD), _as_raised():
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._in_flight.add(fwd_chunk_id)
        self._most_in_flight = max(self._most_in_flight, len(self._in_flight))
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self._phases.phase(Phase.BACKWARD), _as_raised():
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._in_flight.discard(bwd_chunk_id)


@contextmanager
def _as_raised() -> Iterator[None]:
    """Lets the model's own errors through, which torch wraps: an out-of-memory error has to be known as one."""
    try:
        yield
    except RuntimeError as error:
        raise (error if error.__cause__ is None else error.__cause__) from None
