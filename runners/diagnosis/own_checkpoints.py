"""Which modules a model recomputes by itself, found by watching one forward pass."""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from runners.diagnosis.places import PlaceStack
from runners.diagnosis.records import OwnCheckpoint
from runners.inspection.own_recompute import watch_for_recompute

#: What torch's function calls in turn; seen as a part of that call.
_INNER = "_checkpoint_without_reentrant_generator"


class OwnCheckpoints:
    """The calls that were seen."""

    def __init__(self, model: nn.Module, stack: PlaceStack) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack = stack
        self._counts: Counter[tuple[str, str, bool | None]] = Counter()
        self._seen: list[types.FrameType] = []

    def found(self) -> Iterator[OwnCheckpoint]:
        """In the order of their first calls."""
        for (module, function, use_reentrant), count in self._counts.items():
            yield OwnCheckpoint(module=module, function=function, use_reentrant=use_reentrant, num_calls=count)

    def note(self, frame: types.FrameType) -> None:
        """A recompute region begins in this frame; a generator's frame begins several times."""
        caller = frame.f_back
        is_inner = frame.f_code.co_name == _INNER and caller is not None and caller.f_code.co_name == "checkpoint"
        if is_inner or frame in self._seen:
            return
        self._seen.append(frame)
        arguments = frame.f_locals
        module = self._module_of(arguments.get("function", arguments.get("fn")))
        if module is None:
            module = "" if self._stack.top is None else self._stack.top.module
        use_reentrant = arguments.get("use_reentrant")
        is_given = isinstance(use_reentrant, bool)
        self._counts[module, frame.f_code.co_name, use_reentrant if is_given else None] += 1

    def _module_of(self, function: Any) -> str | None:
        """The path of the module whose call the function is; None where it is something else."""
        while isinstance(function, functools.partial):
            function = function.func
        owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
        return self._paths.get(id(owner))


@contextmanager
def watched_checkpoints(model: nn.Module, stack: PlaceStack) -> Iterator[OwnCheckpoints]:
    """Within the context calls of activation checkpointing are noted; slow, so use it for one forward pass."""
    checkpoints = OwnCheckpoints(model, stack)
    with watch_for_recompute(checkpoints.note):
        yield checkpoints
