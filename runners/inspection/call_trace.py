"""Which modules and methods a model calls in one forward pass, with what, and what they hand back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

#: A module and the name of one of its callables: ``(block, "forward")``.
Target = tuple[nn.Module, str]


@dataclass(eq=False)
class Call:
    """One call of a target.

    Attributes:
        parent: The innermost traced call around this one.
        versions: Version counters of the tensors among the arguments when the call began, by position or name.
        output_version: Version counter of `hidden` when the call ended.
        output_marks: Memory and version of every tensor in the output when the call ended: two calls share a mark where
            one handed on what the other returned, viewed perhaps but not edited.
        output_bytes: Bytes that the leaf modules inside the call returned: a measure of its activations.
    """

    owner: nn.Module
    attribute: str
    parent: Call | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: dict[int | str, int]
    output: Any = None
    output_version: int | None = None
    output_marks: frozenset[tuple[int, int]] = frozenset()
    output_bytes: int = 0

    @property
    def hidden(self) -> torch.Tensor | None:
        """What one block hands to the next: its output, or the first element of it; None where that is no tensor."""
        return hidden_of(self.output)

    @property
    def given(self) -> Any:
        """The first argument, positional or named: where a block expects the output of the one before."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)

    def is_within(self, others: Iterable[Call]) -> bool:
        """True where one of the other calls was still open when this one began."""
        open_around = {id(call) for call in self.around()}
        return any(id(other) in open_around for other in others)

    def around(self) -> Iterator[Call]:
        """The traced calls around this one, the innermost first."""
        call = self.parent
        while call is not None:
            yield call
            call = call.parent


@dataclass
class CallTrace:
    """Calls in the order in which they began. Holds every argument and output: drop it soon."""

    calls: list[Call] = field(default_factory=list)

    def calls_of(self, targets: Iterable[Target]) -> list[Call]:
        wanted = {(id(owner), attribute) for owner, attribute in targets}
        return [call for call in self.calls if (id(call.owner), call.attribute) in wanted]


@contextmanager
def traced_calls(targets: Iterable[Target]) -> Iterator[CallTrace]:
    """Within the context, every call of a target is recorded; nothing of the model is changed afterwards.

    The targets' callables are replaced on their instances, as recompute does it, so that what is seen here is what
    would be recomputed: calls that go around a module's hooks are seen as well.
    """
    trace = CallTrace()
    open_calls: list[Call] = []

    def count_output(module: nn.Module, _args: Any, output: Any) -> None:
        if next(module.children(), None) is None:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(output))
            for call in open_calls:
                call.output_bytes += size

    unique = {(id(owner), attribute): (owner, attribute) for owner, attribute in targets}
    previous = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute in unique.values()]
    hook = torch.nn.modules.module.register_module_forward_hook(count_output)
    try:
        for owner, attribute, _ in previous:
            setattr(owner, attribute, _recording(owner, attribute, trace, open_calls))
        yield trace
    finally:
        hook.remove()
        for owner, attribute, own_value in previous:
            if own_value is None:
                vars(owner).pop(attribute, None)
            else:
                setattr(owner, attribute, own_value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in a nest of tuples, lists and dicts."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def hidden_of(output: Any) -> torch.Tensor | None:
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, torch.Tensor) else None


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    # The storage itself rather than its data: fake tensors have none.
    address = tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)
    return address, tensor._version


def _recording(owner: nn.Module, attribute: str, trace: CallTrace, open_calls: list[Call]) -> Callable[..., Any]:
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def record(*args: Any, **kwargs: Any) -> Any:
        versions = {key: value._version for key, value in _items(args, kwargs) if isinstance(value, torch.Tensor)}
        call = Call(owner, attribute, open_calls[-1] if open_calls else None, args, kwargs, versions)
        trace.calls.append(call)
        open_calls.append(call)
        try:
            call.output = original(*args, **kwargs)
        finally:
            open_calls.pop()
        if call.hidden is not None:
            call.output_version = call.hidden._version
        call.output_marks = frozenset(_mark(tensor) for tensor in tensors_in(call.output))
        return call.output

    return record


def _items(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[int | str, Any]]:
    yield from enumerate(args)
    yield from kwargs.items()
