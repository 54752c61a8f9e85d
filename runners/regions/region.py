"""One recompute region: a callable whose activations are dropped in forward and rebuilt in backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from runners.regions.empty_cache import without_empty_caches
from runners.regions.held_statistics import statistics_held
from runners.regions.kept_outputs import KeptOutputs


class RecomputeObserver(Protocol):
    """Told by each region when it rebuilds its activations during backward."""

    def recomputing(self, region_name: str) -> AbstractContextManager[None]:
        """Entered around one rebuild: from the first activation that backward asks for until all are back."""


class Region:
    """What a recompute region knows: its name for people, how it treats the RNG, who watches it, what it keeps.

    Args:
        modules: All whose code runs in it; their running statistics advance in forward and not in the rebuild.
    """

    def __init__(
        self,
        name: str,
        modules: Sequence[nn.Module],
        *,
        preserve_rng_state: bool,
        observer: RecomputeObserver | None,
        keep: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.modules = tuple(modules)
        self.preserve_rng_state = preserve_rng_state
        self.observer = observer
        kept = KeptOutputs(name, keep, preserve_rng_state=preserve_rng_state) if keep else None
        self._options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": preserve_rng_state}
        if kept is not None:
            self._options["context_fn"] = kept.contexts

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function as this region, or plainly where no gradient is recorded."""
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        args, kwargs = without_empty_caches(self.modules, args, kwargs)
        if torch.compiler.is_compiling():
            return checkpoint(function, *args, **self._options, **kwargs)
        run_packed = _Run(function, self)
        # Arguments travel packed: checkpoint finds the devices of tensors inside containers, but not those of keyword
        # arguments, and a keyword of the block can then never clash with one of checkpoint's own.
        return checkpoint(run_packed, args, kwargs, **self._options)


class _Run:
    """The function of a region, called with its arguments packed: once in forward, then once per rebuild."""

    def __init__(self, function: Callable[..., Any], region: Region) -> None:
        self._function = function
        self._region = region
        self._has_run = False
        self._is_reported = False

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._has_run, is_rebuild = True, self._has_run
        with self._reporting(is_rebuild), statistics_held(self._region.modules) if is_rebuild else nullcontext():
            return self._function(*args, **kwargs)

    def _reporting(self, is_rebuild: bool) -> AbstractContextManager[Any]:
        observer = self._region.observer
        if observer is None or self._is_reported:
            return nullcontext()
        return observer.recomputing(self._region.name) if is_rebuild else self._reporting_first_use(observer)

    def _reporting_first_use(self, observer: RecomputeObserver) -> AbstractContextManager[Any]:
        """Within the context, what is saved for backward is saved as checkpoint would, and its first use is reported.

        That use makes checkpoint restore the RNG, run the function again and check what comes out. All of it is the
        price of the rebuild, and not all of it lies within the function.
        """
        # No public call gives the hooks in force. There are none while a graph is traced, which is no time to measure.
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if hooks is None:
            return nullcontext()
        pack, unpack = hooks
        is_first = True

        def reported_unpack(packed: Any) -> torch.Tensor:
            nonlocal is_first
            if not is_first:
                return unpack(packed)
            is_first = False
            self._is_reported = True
            try:
                with observer.recomputing(self._region.name):
                    return unpack(packed)
            finally:
                self._is_reported = False

        return torch.autograd.graph.saved_tensors_hooks(pack, reported_unpack)


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
