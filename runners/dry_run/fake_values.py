"""What a fake tensor answers when somebody asks for its value: nothing, save where any answer leads the same way."""

from __future__ import annotations

from collections.abc import Mapping
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
_CLAIMS = {_ATEN.all.default, _ATEN.all.dim, _ATEN.all.dims}


class FakeValues(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Answers the questions for a value that can be answered, on top of a `FakeTensorMode`.

    Attributes:
        guesses: Any value is taken to be 1. Right for an optimizer, which asks for its count of steps and computes
            with it; wrong for a model, which chooses its path by what it asks for. What a model asks is answered only
            where a claim is about all elements ("nothing is masked"): that it holds.
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
        if func in _CLAIMS:
            output.is_claim_about_all = True
        return output

    def _value_of(self, tensor: torch.Tensor) -> bool | int | float:
        constant = getattr(tensor, "constant", None)
        if constant is not None or not isinstance(tensor, FakeTensor):
            with unset_fake_temporarily():
                value: bool | int | float = (tensor if constant is None else constant).item()
                return value
        if not (self.guesses or hasattr(tensor, "is_claim_about_all")):
            raise NoDryRunError("it asks for the value of a tensor and goes on by it, and a dry run has no values")
        if tensor.dtype == torch.bool:
            return True
        return 1.0 if tensor.dtype.is_floating_point else 1
