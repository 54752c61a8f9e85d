"""Follows every call of a model's modules by name, in forward and where recompute runs them again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from runners.inspection.call_trace import Target

#: Told of a call's name and arguments; what it gives back is entered for the length of the call.
CallWatcher = Callable[[str, tuple[Any, ...], Mapping[str, Any]], AbstractContextManager[Any]]


def call_targets(model: nn.Module) -> dict[str, Target]:
    """Dotted path -> the call of that module, for each that can be called; one module at several places counts once."""
    return {name: (module, "forward") for name, module in model.named_modules() if _is_callable(module)}


@contextmanager
def watched_calls(targets: Mapping[str, Target], watch: CallWatcher) -> Iterator[None]:
    """Within the context the watcher is told of each call; nothing of the model is changed afterwards.

    The callables are replaced on their instances. A policy that is placed within the context recomputes the replaced
    ones, so that calls in a rebuild are seen as well. Take the policy off before the context ends.
    """
    previous = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute in targets.values()]
    try:
        for name, (owner, attribute) in targets.items():
            setattr(owner, attribute, _watched(getattr(owner, attribute), name, watch))
        yield
    finally:
        for owner, attribute, own_value in previous:
            if own_value is None:
                vars(owner).pop(attribute, None)
            else:
                setattr(owner, attribute, own_value)


def _is_callable(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward and not isinstance(module, torch.jit.ScriptModule)


def _watched(original: Callable[..., Any], name: str, watch: CallWatcher) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with watch(name, args, kwargs):
            return original(*args, **kwargs)

    return call
