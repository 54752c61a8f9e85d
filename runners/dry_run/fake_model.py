"""Builds a model whose parameters have no data, by the user's own factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from runners.inspection.call_trace import tensors_in
from runners.workloads.base import Workload

#: Tensors up to this size keep their data while a model is built: rates per layer, rope frequencies, index tables.
_MAX_REAL_ELEMENTS = 2**16
_ATEN = torch.ops.aten
#: What code that builds a model makes its tables with, before it reads numbers out of them.
_TABLE_MAKERS = {
    _ATEN.arange, _ATEN.linspace, _ATEN.logspace, _ATEN.zeros, _ATEN.ones, _ATEN.full, _ATEN.eye, _ATEN.scalar_tensor
}  # fmt: skip


class FakeModelWorkload:
    """A workload whose models are built on fake tensors; its batches are real.

    Args:
        mode: Makes the fake tensors. It is entered while a model is built, and not otherwise.
    """

    def __init__(self, workload: Workload, mode: FakeTensorMode) -> None:
        self._workload = workload
        self._mode = mode

    @property
    def tokens_per_sample(self) -> int | float | None:
        return self._workload.tokens_per_sample

    def build_model(self) -> nn.Module:
        """The model on fake tensors; where its code needs data, it is built for real and its data thrown away.

        Raises:
            WorkloadError: The model cannot be built for real either.
        """
        try:
            with self._mode, _RealTables(self._mode):
                model = self._workload.build_model()
        except Exception:  # noqa: BLE001  # whatever the user's code makes of tensors without data
            model = self._workload.build_model()
        _drop_data(model, self._mode)
        return model

    def make_batch(self, micro_batch_size: int, sequence_length: int | None = None) -> dict[str, Any]:
        return self._workload.make_batch(micro_batch_size, sequence_length)

    def loss_of(self, output: Any) -> torch.Tensor:
        return self._workload.loss_of(output)

    def loss_weight_of(self, output: Any) -> torch.Tensor | None:
        return self._workload.loss_weight_of(output)


class _RealTables(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Lets small tables keep their data, and computes for real what follows from them alone."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._mode = mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return func(*args, **kwargs)  # The mode below makes fake ones of the others.
        if tensors:
            is_small = all(tensor.numel() <= _MAX_REAL_ELEMENTS for tensor in tensors)
        else:
            if func._overloadpacket not in _TABLE_MAKERS:
                return func(*args, **kwargs)
            shape = func(*args, **kwargs)
            is_small = shape.numel() <= _MAX_REAL_ELEMENTS
        if not is_small:
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def _drop_data(model: nn.Module, mode: FakeTensorMode) -> None:
    """Puts a sound fake tensor in the place of every other parameter and buffer; ties stay ties."""
    fakes: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and not _is_sound(tensor, mode):
                    if id(tensor) not in fakes:
                        fakes[id(tensor)] = _made_anew(tensor, mode)
                    tensors[name] = fakes[id(tensor)]  # type: ignore[assignment]  # a parameter's fake is a parameter


def _is_sound(tensor: torch.Tensor, mode: FakeTensorMode) -> bool:
    """Whether it is fake and shares its storage with its views: what `copy.deepcopy` makes of a fake one does not."""
    if not isinstance(tensor, FakeTensor):
        return False
    if tensor.layout != torch.strided:
        return True
    with mode:
        return bool(tensor.detach().untyped_storage()._cdata == tensor.untyped_storage()._cdata)


def _made_anew(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor):
        return mode.from_tensor(tensor)
    with mode:
        data = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        if not isinstance(tensor, nn.Parameter):
            return data
        return nn.Parameter(data, requires_grad=tensor.requires_grad)
