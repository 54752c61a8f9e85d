"""Consecutive blocks under one recompute region, without the parent or any hook noticing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from runners.regions.region import Region
from runners.regions.same_values import same_values


class SegmentError(RuntimeError):
    """The blocks of a segment were not called as one chain, so their joint recompute would compute something else."""


class Segment:
    """Consecutive blocks under one region.

    The first block's call runs the whole chain and hands back its own output; each later block, when the parent calls
    it, checks that it was given what the chain assumed and hands back the output that is already there. So the parent
    and every hook see each block's true output, and a parent that does something between two blocks is found out.
    """

    def __init__(
        self,
        originals: list[Callable[..., Any]],
        names: list[str],
        region: Region,
    ) -> None:
        self.originals = originals
        self.names = names
        self.region = region
        self.shared_call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.shared_versions: list[int] = []
        self.outputs: list[Any] = []
        self.handed_out: tuple[torch.Tensor, int] | None = None

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.outputs = []
        if not torch.is_grad_enabled():
            self.shared_call = None
            return self.originals[0](*args, **kwargs)
        self.shared_call = (args, kwargs)
        self.outputs = list(reversed(self.region.run(self.run_chain, args, kwargs)))
        self.shared_versions = _versions(args, kwargs)
        return self._hand_out(self.names[0])

    def run_chain(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if self.outputs:  # Only in backward: the forward pass has not asked for them all.
            skipped = self.names[-len(self.outputs)]
            raise SegmentError(f"{skipped} was not called after {self.names[0]}, so they cannot be one segment")
        outputs = [self.originals[0](*args, **kwargs)]
        for original, name in zip(self.originals[1:], self.names, strict=False):
            next_args, next_kwargs = _with_hidden(args, kwargs, _hidden(outputs[-1], name))
            outputs.append(original(*next_args, **next_kwargs))
        return tuple(outputs)

    def resume(self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.shared_call is None:
            if torch.is_grad_enabled():
                raise SegmentError(
                    f"{self.names[position]} was called before {self.names[0]}, which starts its segment"
                )
            return self.originals[position](*args, **kwargs)
        name, before = self.names[position], self.names[position - 1]
        if not torch.is_grad_enabled():
            raise SegmentError(f"{name} is called under no_grad and {before} is not, so they cannot be one segment")
        if len(self.outputs) != len(self.originals) - position or self.handed_out is None:
            raise SegmentError(f"{name} was called out of turn inside the segment {self.region.name}")
        expected, version = self.handed_out
        given = args[0] if args else next(iter(kwargs.values()), None)
        if given is not expected:
            raise SegmentError(
                f"{name} does not receive the output of {before} unchanged, so they cannot be one segment"
            )
        if _version(expected) != version:
            raise SegmentError(
                f"the output of {before} was edited in place before {name}, so they cannot be one segment"
            )
        differing = _first_difference(self.shared_call, (args, kwargs))
        if differing is not None:
            raise SegmentError(
                f"{name} receives another {differing} than {self.names[0]}, so they cannot be one segment"
            )
        if _versions(args, kwargs) != self.shared_versions:
            raise SegmentError(f"an argument of {name} was edited in place before it, so they cannot be one segment")
        return self._hand_out(name)

    def _hand_out(self, name: str) -> Any:
        output = self.outputs.pop()
        if self.outputs:
            hidden = _hidden(output, name)
            self.handed_out = (hidden, _version(hidden))
        else:
            self.shared_call, self.handed_out = None, None
        return output


class SegmentHead:
    """Stands in for the forward of a segment's first block."""

    def __init__(self, original: Callable[..., Any], segment: Segment) -> None:
        functools.update_wrapper(self, original)
        self.segment = segment

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.segment.start(args, kwargs)


class SegmentMember:
    """Stands in for the forward of a segment's later blocks."""

    def __init__(self, original: Callable[..., Any], segment: Segment, position: int) -> None:
        functools.update_wrapper(self, original)
        self.segment = segment
        self.position = position

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.segment.resume(self.position, args, kwargs)


def _hidden(output: Any, name: str) -> torch.Tensor:
    """The tensor a block hands to the next one: its output, or the first element of it."""
    hidden = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(hidden, torch.Tensor):
        raise SegmentError(f"{name} returns {type(hidden).__name__} and no tensor, so it cannot be part of a segment")
    return hidden


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor was edited in place; 0 where that is not tracked: in compiled code, in inference mode."""
    return 0 if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """Versions of the tensors among the arguments, the hidden state apart."""
    return [_version(value) for value in (*args, *kwargs.values())[1:] if isinstance(value, torch.Tensor)]


def _with_hidden(
    args: tuple[Any, ...], kwargs: dict[str, Any], hidden: torch.Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (hidden, *args[1:]), kwargs
    name = next(iter(kwargs))
    return args, {**kwargs, name: hidden}


def _first_difference(
    first_call: tuple[tuple[Any, ...], dict[str, Any]], call: tuple[tuple[Any, ...], dict[str, Any]]
) -> str | None:
    """Name of the first argument, the hidden state apart, that two calls do not share; None where they share all."""
    (first_args, first_kwargs), (args, kwargs) = first_call, call
    if len(first_args) != len(args):
        return "number of arguments"
    if list(first_kwargs) != list(kwargs):
        return "set of keyword arguments"
    for position in range(1, len(args)):
        if not same_values(first_args[position], args[position]):
            return f"argument {position + 1}"
    names = list(kwargs) if args else list(kwargs)[1:]
    return next((name for name in names if not same_values(first_kwargs[name], kwargs[name])), None)
