"""A forward that is compiled where it stands: no module is wrapped, so names, hooks, ties and state_dict keys stay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch_config


class CompiledCall:
    """Stands in for one bound ``forward``; compiles it when it is first called.

    Compiled code holds for one shape of its arguments (``dynamic=False``): a step at a micro-batch size or sequence
    length of its own gets code of its own, as in training at that size alone.

    Args:
        memory_budget: Share of the activations that the compiler may keep; None leaves it at its default.
    """

    def __init__(self, original: Callable[..., Any], memory_budget: float | None = None) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._memory_budget = memory_budget
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.original(*args, **kwargs)  # Whatever holds this block is being compiled with it.
        if self._compiled is None:
            backend = "inductor" if self._memory_budget is None else _compiler_within(self._memory_budget)
            self._compiled = torch.compile(self.original, dynamic=False, backend=backend)
        return self._compiled(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles, too: compiled code stays with the module it was made for."""
        return {**vars(self), "_compiled": None}


@functools.cache
def _compiler_within(memory_budget: float) -> Callable[..., Any]:
    """The default compiler with that budget, which it reads when it divides a graph into forward and backward.

    One object for each budget: torch tells code of one from code of another by the compiler alone, and would run what
    was made within another budget where all of them had the same one.
    """

    def compile_within(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        with functorch_config.patch(activation_memory_budget=memory_budget):
            return compile_fx(graph, example_inputs)

    return compile_within
