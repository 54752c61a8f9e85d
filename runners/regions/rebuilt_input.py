"""Modules that do not keep their input, because it is cheap to rebuild: projections after a norm.

The norm's output is let go once forward has used it. When the first of the projections needs it in backward, the norm
runs once more, on its own input, which is kept anyway; the others share what came of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from runners.regions.region import Region
from runners.regions.rng_state import RngState

#: Attribute by which a head's output carries how to make it again: it dies with the tensor, and no copy has it.
_MADE_BY = "_recompute_head_call"


class _HeadCall:
    """One call of the head: its output while forward needs it, and how to make it again."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        rng_state: RngState | None,
        output: torch.Tensor,
    ) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._rng_state = rng_state
        self._version = output._version
        self._requires_grad = output.requires_grad
        self._num_open = 0
        self._rebuilt: torch.Tensor | None = None

    @property
    def args(self) -> tuple[Any, ...]:
        return self._args

    def open(self, output: torch.Tensor) -> None:
        """A tail takes the output in and will ask for it again.

        Raises:
            RuntimeError: It is not what the head gave any more.
        """
        if output._version != self._version:
            raise RuntimeError(
                "a norm's output was edited in place before a projection, so it cannot be rebuilt; take this unit out "
                "of placement.actions"
            )
        self._num_open += 1

    def again(self) -> torch.Tensor:
        """The output, rebuilt; let go with the last of the tails that took it in."""
        if self._rebuilt is None:
            preserved = nullcontext() if self._rng_state is None else self._rng_state.again()
            with torch.no_grad(), preserved:
                self._rebuilt = self._function(*self._args, **self._kwargs)
        rebuilt = self._rebuilt
        self._num_open -= 1
        if self._num_open <= 0:
            self._rebuilt = None
        return rebuilt.detach().requires_grad_(self._requires_grad)


def let_go(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with every one that can be made again exchanged for how to: what holds them does not hold it."""
    return tuple(_held(value) for value in args)


def made_again(held: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that `let_go` was given."""
    return tuple(value.made_by.again() if isinstance(value, _Held) else value for value in held)


class _Held(NamedTuple):
    """An argument that is not kept. The tensors beside it show which devices the call works on."""

    made_by: _HeadCall
    tensors: tuple[Any, ...]


def _held(value: Any) -> Any:
    made_by: _HeadCall | None = getattr(value, _MADE_BY, None)
    if made_by is None:
        return value
    made_by.open(value)
    return _Held(made_by, made_by.args)


class HeadCall:
    """Stands in for the forward of the module whose output is rebuilt.

    Args:
        keeps_inner: It keeps little besides its input, as torch's own norms do; else that is rebuilt, too.
    """

    def __init__(self, original: Callable[..., Any], region: Region, *, keeps_inner: bool) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.region = region
        self._keeps_inner = keeps_inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.original(*args, **kwargs)  # A compiler rebuilds what is cheap without being told.
        # torch's own norms draw no random numbers.
        preserves = self.region.preserve_rng_state and not self._keeps_inner
        rng_state = RngState(args, kwargs) if preserves else None
        run = self.original if self._keeps_inner else functools.partial(_in_region, self.region, self.original)
        output = run(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            setattr(output, _MADE_BY, _HeadCall(self.original, args, kwargs, rng_state, output))
        return output


def _in_region(region: Region, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return region.run(function, args, kwargs)


class InputTailCall:
    """Stands in for the forward of a module that takes the head's output in."""

    def __init__(self, original: Callable[..., Any], region: Region) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.region = region

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made_by: _HeadCall | None = getattr(args[0], _MADE_BY, None) if args else None
        if made_by is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.original(*args, **kwargs)
        made_by.open(args[0])
        # Whatever is handed to the region lives as long as its graph: so not the tensor itself.
        return self.region.run(_TailRun(self.original, made_by, args[0]), (made_by.args, *args[1:]), kwargs)


class _TailRun:
    """A tail's forward: on the tensor at hand the first time, on the rebuilt one after that."""

    def __init__(self, function: Callable[..., Any], made_by: _HeadCall, given: torch.Tensor) -> None:
        self._function = function
        self._made_by = made_by
        self._given: torch.Tensor | None = given

    def __call__(self, _head_args: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        given, self._given = self._given, None
        return self._function(self._made_by.again() if given is None else given, *args, **kwargs)
