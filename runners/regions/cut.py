"""A region that ends inside a module: rebuilt are the cheap operations before a projection, its input among them.

For an MLP, ``down(dropout(act(up(x))))``, that is from the activation to ``down``. Rebuilding runs the MLP's forward
once more, with the outputs of the modules before that hold matrices (``up``, a gate) taken from the first run, and
stops at ``down`` as soon as its input is back. So no product of matrices runs twice, and whatever stands between (a
gated product, dropout) needs no module of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from runners.regions.rebuilt_input import let_go, made_again
from runners.regions.region import Region
from runners.regions.rng_state import RngState
from runners.regions.saved_tensor_hooks import HookPair, HooksAside, top_hooks


class CutRegionError(RuntimeError):
    """The module did not run as in the first pass, so rebuilding would compute something else."""


class CutRegion:
    """What the calls of one module's region share.

    Attributes:
        running: The pass of the module that runs now; None outside of its forward.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.running: _Pass | None = None

    @contextmanager
    def passing(self, pass_: _Pass | None) -> Iterator[None]:
        """Within the context this pass runs."""
        before, self.running = self.running, pass_
        try:
            yield
        finally:
            self.running = before


class _Pass:
    """One forward of the module, and its rebuilds.

    Attributes:
        is_over: The region's end is behind; what runs now belongs to the module's surroundings.
    """

    def __init__(self, region_name: str, outer_hooks: HookPair | None) -> None:
        self.region_name = region_name
        self._outer_hooks = outer_hooks
        self._after_end = HooksAside()
        self.is_rebuild = False
        self.is_over = False
        self._outputs: list[_KeptOutput] = []
        self._num_taken = 0

    def begin(self) -> None:
        """Before each run of the module's forward."""
        self.is_over = False
        self._num_taken = 0

    def end(self) -> None:
        """After the region's last module; a rebuild gets here only where it does not stop early."""
        self.is_over = True
        if self.is_rebuild:
            self._after_end.take_one()
        else:
            self._after_end.take_down_to(self._outer_hooks)

    def leave(self) -> None:
        """After each run of the module's forward, however it ended."""
        self._after_end.put_back()
        self.is_rebuild = True

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Within the context, tensors are saved for backward as they would be without the region."""
        aside = HooksAside()
        aside.take_down_to(self._outer_hooks)
        try:
            yield
        finally:
            aside.put_back()

    def keep(self, output: _KeptOutput) -> None:
        self._outputs.append(output)

    def take(self, name: str) -> Any:
        """What the module of that name gave in the first run."""
        if self._num_taken >= len(self._outputs) or self._outputs[self._num_taken].name != name:
            raise CutRegionError(
                f"{self.region_name}: {name} was called in the rebuild but not at this point of forward; the module "
                "must run the same way both times"
            )
        self._num_taken += 1
        return self._outputs[self._num_taken - 1].value(self.region_name)


class _KeptOutput:
    """What a module gave, without the graph that made it."""

    def __init__(self, name: str, output: Any, rng_after: RngState | None) -> None:
        self.name = name
        self._rng_after = rng_after
        self._output = torch.utils._pytree.tree_map_only(torch.Tensor, _kept, output)

    def value(self, region_name: str) -> Any:
        if self._rng_after is not None:
            self._rng_after.restore()  # Its own random numbers were drawn in the first run only.

        def tensor(kept: _KeptTensor | _MadeAgain) -> torch.Tensor:
            return kept.value(f"{region_name}: the output of {self.name}")

        return torch.utils._pytree.tree_map_only((_KeptTensor, _MadeAgain), tensor, self._output)


def _kept(tensor: torch.Tensor) -> _KeptTensor | _MadeAgain:
    """Not the tensor itself where a norm makes it again, as the last norm of an attention module does."""
    held = let_go((tensor,))
    return _KeptTensor(tensor) if held[0] is tensor else _MadeAgain(held)


class _MadeAgain:
    def __init__(self, held: tuple[Any, ...]) -> None:
        self._held = held

    def value(self, what: str) -> torch.Tensor:
        (value,) = made_again(self._held)
        assert isinstance(value, torch.Tensor), what
        return value


class _KeptTensor:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self._requires_grad = tensor.requires_grad
        self._version = tensor._version

    def value(self, what: str) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise CutRegionError(
                f"{what} was edited in place, so what follows from it cannot be rebuilt; use a variant that does not "
                "work in place, or take this unit out of placement.actions"
            )
        return self._tensor.detach().requires_grad_(self._requires_grad)


class CutCall:
    """Stands in for the forward of the module that the region is a part of."""

    def __init__(self, original: Callable[..., Any], cut: CutRegion) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.cut = cut

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.original(*args, **kwargs)  # A compiler rebuilds what is cheap without being told.
        pass_ = _Pass(self.cut.region.name, top_hooks())
        # What is handed to the region lives as long as its graph: so not what a norm before it makes again.
        return self.cut.region.run(functools.partial(self._run, pass_, [args]), let_go(args), kwargs)

    def _run(self, pass_: _Pass, given: list[tuple[Any, ...]], *held: Any, **kwargs: Any) -> Any:
        args = given.pop() if given else made_again(held)
        pass_.begin()
        try:
            with self.cut.passing(pass_):
                return self.original(*args, **kwargs)
        finally:
            pass_.leave()


class KeptCall:
    """Stands in for the forward of a module before the region's end that is not to run twice."""

    def __init__(self, original: Callable[..., Any], cut: CutRegion, name: str, *, may_be_random: bool) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.cut = cut
        self.name = name
        self._may_be_random = may_be_random

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        pass_ = self.cut.running
        if pass_ is None or pass_.is_over:
            return self.original(*args, **kwargs)
        if pass_.is_rebuild:
            return pass_.take(self.name)
        with self.cut.passing(None), pass_.outside():
            output = self.original(*args, **kwargs)
        preserves = self._may_be_random and self.cut.region.preserve_rng_state
        pass_.keep(_KeptOutput(self.name, output, RngState(args, kwargs) if preserves else None))
        return output


class TailCall:
    """Stands in for the forward of the module that the region ends with."""

    def __init__(self, original: Callable[..., Any], cut: CutRegion) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.cut = cut

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        pass_ = self.cut.running
        output = self.original(*args, **kwargs)
        if pass_ is not None and not pass_.is_over:
            pass_.end()
        return output
