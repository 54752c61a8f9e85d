"""Tensors of a few steps, kept in an unnamed temporary file so that neither memory nor disk holds them afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

#: Kept in double only where the gradient itself is; all else fits single precision.
_STORED_DTYPE = {torch.float64: np.float64}


class TensorLog:
    """Named tensors, written once and read back one at a time. The file has no name: a crash leaves nothing."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the log
        self._entries: dict[str, tuple[int, int, npt.DTypeLike]] = {}

    def write(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in named_tensors:
            array = _as_array(tensor)
            position = self._file.seek(0, 2)
            self._file.write(array.tobytes())
            self._entries[name] = (position, array.size, array.dtype)

    def names(self) -> list[str]:
        return list(self._entries)

    def read(self, name: str) -> npt.NDArray[np.floating]:
        """The tensor's values, flat, shape (numel,)."""
        position, size, dtype = self._entries[name]
        self._file.seek(position)
        return np.frombuffer(self._file.read(size * np.dtype(dtype).itemsize), dtype=dtype)

    def close(self) -> None:
        self._file.close()


def _as_array(tensor: torch.Tensor) -> npt.NDArray[np.floating]:
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    if dense.is_complex():
        dense = torch.view_as_real(dense)
    stored = _STORED_DTYPE.get(dense.dtype, np.float32)
    as_torch = torch.float64 if stored is np.float64 or not dense.is_floating_point() else torch.float32
    return np.ascontiguousarray(dense.to("cpu", as_torch).numpy()).reshape(-1)
