"""Where a model can be cut into stages: found by following one forward pass and its graph, not by names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runners.base import WorkloadError
from runners.inspection.block_lists import Container, container_at
from runners.inspection.call_trace import Call, CallTrace, tensors_in, traced_calls
from runners.inspection.chain import alias_groups
from runners.parallel.records import PipelineCut

_WHERE = "runner.strategy is pipeline"
_INSTEAD = "use another strategy for this model"


def find_pipeline_cut(
    model: nn.Module, run_step: Callable[[], torch.Tensor], lists: Sequence[str], num_stages: int, *, num_samples: int
) -> PipelineCut:
    """Cuts the model's list of blocks into stages of as many blocks each; the first ones take those left over.

    Args:
        run_step: Runs one forward pass and gives back the loss with its graph; it may be on tensors without data.
        lists: Paths of the model's lists of blocks.
        num_samples: Of the batch that ``run_step`` runs.

    Raises:
        WorkloadError: The model cannot be cut so that nothing but hidden states passes from stage to stage.
    """
    container = _only_list(model, lists)
    num_blocks = len(container.blocks)
    if num_blocks < num_stages:
        raise WorkloadError(
            f"runner.pipeline_stages is {num_stages}, but {container.path} has {num_blocks} blocks and each stage "
            f"needs one; from 2 to {num_blocks} are allowed: lower it"
        )
    with traced_calls(container.targets) as trace:
        loss = run_step()
    calls = _calls_in_order(container, trace)
    outside = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if not name.startswith(f"{container.path}.")
    }
    before, after = _walk([calls[0].given]), _walk([loss], stop=calls[-1].hidden)
    _refuse_ways_around(container, outside, before, after)
    first_blocks = _first_blocks(num_blocks, num_stages)
    output = calls[0].output
    cut = PipelineCut(
        blocks=container.path,
        first_blocks=first_blocks,
        num_blocks=num_blocks,
        before=_reached(outside, before),
        after=_reached(outside, after),
        output_length=None if isinstance(output, torch.Tensor) else len(output),
        hidden_bytes=tuple(_bytes_of(calls[first - 1].hidden) // num_samples for first in first_blocks[1:]),
    )
    at_both_ends = {id(outside[n]): outside[n] for n in cut.before & cut.after if outside[n].requires_grad}
    tied_bytes = sum(map(_bytes_of, at_both_ends.values()))
    return cut.model_copy(update={"outside_bytes": tuple(_outside_bytes(outside, cut)), "tied_bytes": tied_bytes})


def _only_list(model: nn.Module, lists: Sequence[str]) -> Container:
    if len(lists) != 1:
        found = f": {', '.join(lists)}" if lists else ""
        hint = "" if lists else ", or name the list with placement.blocks"
        raise WorkloadError(
            f"{_WHERE}, which cuts one list of blocks into stages, but the model has {len(lists)}{found}; "
            f"{_INSTEAD}{hint}"
        )
    return container_at(model.get_submodule(lists[0]), lists[0])


def _first_blocks(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    even, more = divmod(num_blocks, num_stages)
    return tuple(stage * even + min(stage, more) for stage in range(num_stages))


def _calls_in_order(container: Container, trace: CallTrace) -> list[Call]:
    """One call of each block, each of which hands its hidden state and nothing else to the next."""
    aliases = alias_groups(container.blocks)
    if aliases:
        places = ", ".join(map(str, aliases[0]))
        raise WorkloadError(f"{_WHERE}, but one module stands at positions {places} of {container.path}; {_INSTEAD}")
    calls = trace.calls_of(container.targets)
    if [id(call.owner) for call in calls] != [id(block) for block in container.blocks]:
        raise WorkloadError(f"{_WHERE}, but the blocks of {container.path} do not run once each, in order; {_INSTEAD}")
    for name, call, before in zip(container.names, calls, [None, *calls], strict=False):
        reason = _why_no_border(name, call, before)
        if reason is not None:
            raise WorkloadError(f"{_WHERE}, but {reason}; {_INSTEAD}")
    return calls


def _why_no_border(name: str, call: Call, before: Call | None) -> str | None:
    if call.hidden is None:
        return f"{name} returns a {type(call.output).__name__} whose first element is no tensor"
    others = [] if isinstance(call.output, torch.Tensor) else tensors_in(list(call.output[1:]))
    if others:
        return f"{name} hands on {len(others)} more tensor{'s' if len(others) > 1 else ''} than its hidden state"
    if before is not None and (call.given is not before.hidden or _version_given(call) != before.output_version):
        return f"{name} receives something else than the output of the block before it"
    further = tensors_in((list(call.args[1:]), dict(list(call.kwargs.items())[0 if call.args else 1 :])))
    if any(tensor.requires_grad for tensor in further):
        return f"{name} takes more than its hidden state from what weights compute, such as an encoder's output"
    return None


def _version_given(call: Call) -> int | None:
    """Version of the hidden state when the block received it."""
    return call.versions.get(0 if call.args else next(iter(call.kwargs)))


@dataclass(frozen=True)
class _Walk:
    """What backward would come through.

    Attributes:
        nodes: Operations, kept alive so that each has one identity.
        leaves: Identities of the parameters.
    """

    nodes: frozenset[Any]
    leaves: frozenset[int]


def _walk(values: Sequence[object], stop: torch.Tensor | None = None) -> _Walk:
    """From these values back to parameters, or to the tensor at which the walk stops."""
    nodes: set[Any] = set()
    leaves: set[int] = set()
    waiting: list[Any] = []
    for tensor in tensors_in(list(values)):
        if tensor.grad_fn is not None:
            waiting.append(tensor.grad_fn)
        elif tensor.requires_grad:
            leaves.add(id(tensor))
    end = None if stop is None else stop.grad_fn
    while waiting:
        node = waiting.pop()
        if node is None or node is end or node in nodes:
            continue
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(id(variable))
            continue
        nodes.add(node)
        waiting += [following for following, _ in node.next_functions]
    return _Walk(frozenset(nodes), frozenset(leaves))


def _refuse_ways_around(container: Container, outside: Mapping[str, nn.Parameter], before: _Walk, after: _Walk) -> None:
    """Refuses a model whose end takes something from before its last block on another way than through it."""
    own = {id(parameter) for block in container.blocks for parameter in block.parameters()}
    if before.nodes & after.nodes or after.leaves & own - {id(parameter) for parameter in outside.values()}:
        raise WorkloadError(
            f"{_WHERE}, but what runs after the last block of {container.path} takes more than that block's output, "
            f"such as an earlier hidden state; {_INSTEAD}"
        )


def _reached(outside: Mapping[str, nn.Parameter], walk: _Walk) -> frozenset[str]:
    return frozenset(name for name, parameter in outside.items() if id(parameter) in walk.leaves)


def _outside_bytes(outside: Mapping[str, nn.Parameter], cut: PipelineCut) -> Iterator[int]:
    for stage in range(cut.num_stages):
        held = {id(p): p for name, p in outside.items() if stage in cut.stages_outside(name)}
        yield sum(map(_bytes_of, held.values()))


def _bytes_of(tensor: torch.Tensor | None) -> int:
    assert tensor is not None, "a call without a hidden state was refused"
    return tensor.nbytes
