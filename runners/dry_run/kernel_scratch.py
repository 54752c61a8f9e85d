"""What kernels take beside what an operation is seen to return, found by running each operation for real, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch.utils._pytree import tree_leaves, tree_map

from runners.measure.allocation_trace import AllocationRecorder
from runners.measure.flops import flop_formulas

_ATEN = torch.ops.aten
#: Kernels that work element by element, copy or only fill take nothing beside what they return; nor do libraries'
#: matrix products, whose scratch is not torch's (torch 2.13).
_WITHOUT_SCRATCH = frozenset(
    {
        _ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm,
        _ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided,
        _ATEN.zeros, _ATEN.zeros_like, _ATEN.ones, _ATEN.ones_like, _ATEN.full, _ATEN.full_like, _ATEN.arange,
        _ATEN.clone, _ATEN.copy_, _ATEN._to_copy, _ATEN.zero_, _ATEN.fill_, _ATEN.detach,
    }
)  # fmt: skip
#: Tensors below this size are not looked at: their scratch is as small.
_LEAST_BYTES = 2**14
#: Share of the memory that is free which the tensors of one operation may take, and the most of it.
_FREE_SHARE, _MOST_BYTES = 0.25, 2**30
#: Floating-point operations above which an operation takes a core longer than a figure is worth.
_MOST_FLOPS = 10**11
#: Of the stretch of a recording in which the operation runs.
_NAME = "operation"


@dataclass(frozen=True)
class _Layout:
    """A tensor without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor, true_bytes: int | None = None) -> _Layout:
        """Of a tensor as it looks, or of one that looks empty and has that size."""
        if true_bytes and tensor.numel() == 0:
            return cls((true_bytes // tensor.itemsize,), (1,), tensor.dtype)
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @property
    def num_elements(self) -> int:
        """Of its storage: a tensor that repeats elements holds each once."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize

    def made(self) -> torch.Tensor:
        return torch.zeros(self.num_elements, dtype=self.dtype).as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Ran:
    """What an operation did when it was run.

    Attributes:
        gained_bytes: Most bytes that it gained while it ran, its output included.
        output_bytes: Of the storage of each output, in order.
    """

    gained_bytes: int
    output_bytes: tuple[int, ...]


class KernelScratch:
    """Runs operations that may take more than what their outputs on fake tensors show.

    Attributes:
        too_large: Names of operators that were left out for their size.
    """

    def __init__(self) -> None:
        self.too_large: set[str] = set()
        #: By the operator and the text of its arguments; None of those that do not run by themselves.
        self._ran: dict[tuple[Any, str], Ran | None] = {}
        self._formulas = flop_formulas()
        # The profiler complains on the terminal where the first thread to use it is not the process's own.
        with AllocationRecorder().recording():
            pass

    def ran(
        self,
        operator: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        true_bytes: Callable[[torch.Tensor], int | None],
    ) -> Ran | None:
        """What the operation does on a CPU; None where its outputs show all that it takes, or it cannot be run.

        Args:
            true_bytes: Of the storages of tensors that look empty; None where nothing is known of one.
        """
        if not _may_have_scratch(operator):
            return None
        tensors = [leaf for leaf in tree_leaves((args, kwargs, output)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.layout != torch.strided for tensor in tensors):
            return None
        num_bytes = sum(_Layout.of(tensor, true_bytes(tensor)).num_bytes for tensor in tensors)
        if num_bytes < _LEAST_BYTES:
            return None
        formula = self._formulas.get(operator._overloadpacket)
        num_flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=output))
        if num_flops > _MOST_FLOPS or num_bytes > min(_MOST_BYTES, _FREE_SHARE * psutil.virtual_memory().available):
            self.too_large.add(str(operator))
            return None

        def without_data(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return _Layout.of(leaf, true_bytes(leaf))
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        given = tree_map(without_data, (args, dict(kwargs)))
        key = (operator, repr(given))
        if key not in self._ran:
            # A thread of its own has none of the modes (fake tensors, autocast) that are on in this one.
            with ThreadPoolExecutor(1) as thread:
                self._ran[key] = thread.submit(_run, operator, given).result()
        return self._ran[key]


def _may_have_scratch(operator: Any) -> bool:
    if operator.namespace != "aten" or operator.is_view or operator._overloadpacket in _WITHOUT_SCRATCH:
        return False
    return not {torch.Tag.pointwise, torch.Tag.nondeterministic_seeded} & set(operator.tags)


def _run(operator: Any, given: Any) -> Ran | None:
    """Runs the operation on zeros.

    Args:
        given: Its arguments by position and by name, with layouts in the place of tensors.
    """

    def is_layout(leaf: Any) -> bool:
        return isinstance(leaf, _Layout)

    leaves = tree_leaves(given, is_leaf=is_layout)
    if any(is_layout(leaf) and not leaf.num_elements for leaf in leaves):
        return None  # A store of the kernel's own, say, whose size nobody knows: it would read past its end.
    args, kwargs = tree_map(lambda leaf: leaf.made() if is_layout(leaf) else leaf, given, is_leaf=is_layout)
    recorder = AllocationRecorder()
    # Not by `torch.get_rng_state`, whose states are counted in a dry run.
    random_state = torch.default_generator.get_state()
    try:
        with recorder.recording(), recorder.interval(_NAME):
            output = operator(*args, **kwargs)
    except Exception:  # noqa: BLE001  # whatever a kernel makes of zeros
        return None
    finally:
        torch.default_generator.set_state(random_state)
    trace = recorder.trace()
    gained, _ = trace.within(trace.named(_NAME)[0]).peak()
    tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
    return Ran(gained, tuple(tensor.untyped_storage().nbytes() for tensor in tensors))
