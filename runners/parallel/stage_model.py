"""One stage of a model: the model's own forward, in which the blocks of other stages are passed over.

The code of the model stays whole, so whatever it computes beside the hidden states (positions, masks) every stage
computes for itself, from the same inputs. What only other stages use is taken out: the parameters and buffers of their
blocks, and in place of any other parameter stands one without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runners.inspection.block_lists import Container, container_at
from runners.inspection.call_trace import hidden_of
from runners.parallel.records import PipelineCut


class StageEnd(BaseException):
    """Ends the model's forward where the next stage begins. No error: a model's own handling must not catch it."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


@dataclass(frozen=True)
class WholeParameter:
    """A parameter of the whole model.

    Attributes:
        stages: Those that hold it.
        is_trained: Some stage uses it.
    """

    stages: tuple[int, ...]
    is_trained: bool
    shape: torch.Size
    dtype: torch.dtype


class StageModel:
    """The model after what is other stages' was taken out of it, in place.

    Attributes:
        whole: Every parameter of the whole model under its first name, in the model's order.
        held: Those that this stage holds, under the same names.
        received: What the stage before has sent, for the next call; None on the first stage.
    """

    def __init__(self, model: nn.Module, cut: PipelineCut, stage: int, device: torch.device) -> None:
        container = container_at(model.get_submodule(cut.blocks), cut.blocks)
        self._output_length = cut.output_length
        self.received: torch.Tensor | None = None
        self.whole = _whole_parameters(model, container, cut)
        self.held = {name: p for name, p in model.named_parameters() if stage in self.whole[name].stages}
        _take_out(model, container, cut, stage, device)
        own = cut.blocks_of(stage)
        for position, block in enumerate(container.blocks):
            if position < own.start:
                block.forward = self._hand_over if position == own.start - 1 else self._pass_over
            elif position >= own.stop:
                block.forward = _end_stage

    @property
    def shared(self) -> dict[str, tuple[int, ...]]:
        """The stages of each parameter that several of them use: a tied weight, for the most part."""
        return {name: p.stages for name, p in self.whole.items() if p.is_trained and len(p.stages) > 1}

    def run(self, call: Callable[[], Any]) -> Any:
        """What the call of the model gives, with what was received in place of the blocks before.

        Raises:
            StageEnd: With what the next stage is to receive, on all stages but the last.
        """
        if self.received is None:
            return call()
        with torch.enable_grad():
            # Until what was received takes over, nothing is computed that backward comes to.
            torch.set_grad_enabled(False)
            return call()

    def _pass_over(self, *args: Any, **kwargs: Any) -> Any:
        return self._as_output(_given(args, kwargs))

    def _hand_over(self, *args: Any, **kwargs: Any) -> Any:
        assert self.received is not None, "a later stage runs on what it has received"
        torch.set_grad_enabled(True)
        return self._as_output(self.received)

    def _as_output(self, hidden: torch.Tensor) -> Any:
        """As a block returns its hidden state."""
        return hidden if self._output_length is None else (hidden, *[None] * (self._output_length - 1))


def _end_stage(*args: Any, **kwargs: Any) -> Any:
    raise StageEnd(_given(args, kwargs))


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    hidden = hidden_of(args[0] if args else next(iter(kwargs.values())))
    assert hidden is not None, "the cut was made for a model whose blocks hand on a tensor"
    return hidden


def _whole_parameters(model: nn.Module, container: Container, cut: PipelineCut) -> dict[str, WholeParameter]:
    """Stages of each parameter; one that stands at several places is on the stages of all of them."""
    stage_of_key = {container.keys[block]: stage for stage in range(cut.num_stages) for block in cut.blocks_of(stage)}
    prefix = f"{cut.blocks}."
    first_names: dict[int, str] = {}
    stages: dict[str, set[int]] = {}
    trained: set[str] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first_name = first_names.setdefault(id(parameter), name)
        is_used = name.startswith(prefix) or name in cut.before or name in cut.after
        if is_used:
            trained.add(first_name)
        if name.startswith(prefix):
            stages.setdefault(first_name, set()).add(stage_of_key[name.removeprefix(prefix).split(".", 1)[0]])
        else:
            stages.setdefault(first_name, set()).update(cut.stages_outside(name))
    return {
        name: WholeParameter(tuple(sorted(stages[name])), name in trained, parameter.shape, parameter.dtype)
        for name, parameter in model.named_parameters()
    }


def _take_out(model: nn.Module, container: Container, cut: PipelineCut, stage: int, device: torch.device) -> None:
    own = cut.blocks_of(stage)
    for block in (*container.blocks[: own.start], *container.blocks[own.stop :]):
        for module in block.modules():
            for tensors in (module._parameters, module._buffers):
                tensors.update(dict.fromkeys(tensors))
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if not name.startswith(f"{cut.blocks}.") and stage not in cut.stages_outside(name):
            owner, _, attribute = name.rpartition(".")
            module = model.get_submodule(owner)
            del module._parameters[attribute]
            # It may still be computed with where nobody looks at the result: one zero, as large as you like.
            setattr(module, attribute, torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape))
