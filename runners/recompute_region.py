"""One recompute region: a callable whose activations are dropped in forward and rebuilt in backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.utils.checkpoint import checkpoint


class RecomputeObserver(Protocol):
    """Told by each region when it rebuilds its activations during backward."""

    def recomputing(self, region_name: str) -> AbstractContextManager[None]:
        """Entered around one rebuild; left early where the region stops as soon as all it needs is back."""


class Region:
    """What a recompute region knows: its name for people, how it treats the RNG and who watches it."""

    def __init__(self, name: str, *, preserve_rng_state: bool, observer: RecomputeObserver | None) -> None:
        self.name = name
        self.preserve_rng_state = preserve_rng_state
        self.observer = observer

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function as this region, or plainly where no gradient is recorded."""
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        if torch.compiler.is_compiling():
            return checkpoint(
                function, *args, use_reentrant=False, preserve_rng_state=self.preserve_rng_state, **kwargs
            )
        runs = 0

        def run_packed(packed_args: tuple[Any, ...], packed_kwargs: Mapping[str, Any]) -> Any:
            nonlocal runs
            runs += 1
            if runs == 1 or self.observer is None:
                return function(*packed_args, **packed_kwargs)
            with self.observer.recomputing(self.name):
                return function(*packed_args, **packed_kwargs)

        # Arguments travel packed: checkpoint finds the devices of tensors inside containers, but not those of keyword
        # arguments, and a keyword of the block can then never clash with one of checkpoint's own.
        return checkpoint(run_packed, args, kwargs, use_reentrant=False, preserve_rng_state=self.preserve_rng_state)


class RecomputedCall:
    """Stands in for one bound ``forward`` (or other method).

    An object rather than a closure: a deep copy of the model then gets a copy that is bound to the copied module.
    """

    def __init__(self, original: Callable[..., Any], region: Region) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.region = region

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.region.run(self.original, args, kwargs)
