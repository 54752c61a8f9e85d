"""What a fake tensor answers when somebody asks for its value: nothing, save where any answer leads the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode


class NoDryRunError(Exception):
    """The model cannot be run without data; the message is one line that says why."""


_ATEN = torch.ops.aten
#: Not an operation: looking at ``tensor.device`` passes through here for every fake tensor.
DEVICE = torch.ops.prim.device.default
_VALUE = _ATEN._local_scalar_dense.default


class FakeValues(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Answers the questions for a value that can be answered, on top of a `FakeTensorMode`.

    Attributes:
        guesses: Any value is taken to be 1. Right for an optimizer, which asks for its count of steps and computes
            with it; wrong for a model, which chooses its path by what it asks for. What a model asks is answered only
            where a claim is about all elements ("nothing is masked"), that it holds, and where a draw cannot but
            come out one way.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self.guesses = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _VALUE:
            return self._value_of(args[0])
        output = func(*args, **(kwargs or {}))
        note = _NOTES.get(func)
        if note is not None:
            note(args, output)
        return output

    def _value_of(self, tensor: torch.Tensor) -> bool | int | float:
        constant = getattr(tensor, "constant", None)
        if constant is not None or not isinstance(tensor, FakeTensor):
            with unset_fake_temporarily():
                value: bool | int | float = (tensor if constant is None else constant).item()
                return value
        known: bool | None = getattr(tensor, "known_value", None)
        if known is not None:
            return known
        if not self.guesses:
            raise NoDryRunError("it asks for the value of a tensor and goes on by it, and a dry run has no values")
        if tensor.dtype == torch.bool:
            return True
        return 1.0 if tensor.dtype.is_floating_point else 1


def _holds_for_all(_args: tuple[Any, ...], output: Any) -> None:
    output.known_value = True


def _counts_claims(args: tuple[Any, ...], output: Any) -> None:
    """``claims.sum() == claims.numel()`` is how transformers asks whether all hold (`fast_all`)."""
    if args[0].dtype == torch.bool:
        output.num_claims = args[0].numel()


def _compares_count(args: tuple[Any, ...], output: Any) -> None:
    if getattr(args[0], "num_claims", None) == args[1]:
        output.known_value = True


def _draws_share(_args: tuple[Any, ...], output: Any) -> None:
    output.is_share = True


def _compares_share(args: tuple[Any, ...], output: Any) -> None:
    """Whether to drop a layer is drawn in some models (transformers' BART) where the probability is 0, too."""
    if hasattr(args[0], "is_share") and not 0 < args[1] < 1:
        output.known_value = args[1] >= 1


#: Operators after which something is known of the output: called with the operator's arguments and its output.
_NOTES: dict[Any, Callable[[tuple[Any, ...], Any], None]] = {
    _ATEN.all.default: _holds_for_all,
    _ATEN.all.dim: _holds_for_all,
    _ATEN.all.dims: _holds_for_all,
    _ATEN.sum.default: _counts_claims,
    _ATEN.eq.Scalar: _compares_count,
    _ATEN.rand.default: _draws_share,
    _ATEN.lt.Scalar: _compares_share,
}
