"""What each operator of a block's forward leaves and takes: its outputs' bytes, its time, whether a rebuild runs it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from runners.measure.flops import flop_formulas
from runners.regions.kept_outputs import is_random, is_view

#: Forward passes; the time of an operator is the least of them.
_NUM_PASSES = 5
#: What stands for a second where nothing is computed: bytes that an operator reads and writes, and FLOPs. A processor
#: does some ten FLOPs while it moves a byte; only the ratio matters.
_BYTES_PER_S, _FLOPS_PER_S = 2e10, 2e11
_CASTS = ("aten._to_copy.default", "aten.lift_fresh.default")


@dataclass(frozen=True)
class OperatorCall:
    """One operator in a block's forward.

    Attributes:
        name: ``namespace.operator.overload``.
        call: Which call of that operator in the block, from 0.
        num_bytes: Of its outputs; 0 where they are views of what it was given.
        time_s: What running it again takes; where nothing is computed a figure in proportion to that.
        is_rebuilt: It runs before the last tensor that backward needs is there, so a rebuild runs it.
        can_be_kept: Its outputs are new tensors that nothing edits later, and not mere casts.
        is_product: It multiplies matrices.
        is_attention: It is a fused attention.
    """

    name: str
    call: int
    num_bytes: int
    time_s: float
    is_rebuilt: bool
    can_be_kept: bool
    is_product: bool
    is_attention: bool


@dataclass(frozen=True)
class OperatorProfile:
    """Attributes:
    saved_bytes: What the plain block keeps for backward, parameters and its input left out.
    """

    calls: tuple[OperatorCall, ...]
    saved_bytes: int


def profile_operators(block: nn.Module, run_step: Callable[[], object]) -> OperatorProfile | None:
    """The operators of the block's first call in a forward pass; None where it is not called with gradients."""
    passes = []
    for _ in range(_NUM_PASSES):
        with _watched(block) as watch:
            run_step()
        if watch is None or not watch.has_run:
            return None
        passes.append(watch)
    first = passes[0]
    same = [each for each in passes if each.names == first.names]
    times = [min(each.times_s[i] for each in same) for i in range(len(first.names))]
    return first.profile(times)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    """Sees the operators of one call of a block, and what it saves."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.has_run = False
        self.names: list[str] = []
        self.times_s: list[float] = []
        self._operators: list[Any] = []
        self._fresh: list[dict[int, int]] = []  # Storages that each operator made, with their bytes.
        self._edited: list[set[int]] = []
        self._num_before_last_save = 0
        self._saved: dict[int, int] = {}
        self._formulas = flop_formulas()
        self._known: set[int] = set()
        self._alive: list[Any] = []  # An address must not be given to another storage while this one is watched.

    def begin(self, given: Any) -> None:
        for tensor in _tensors(given):
            self._hold(tensor)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._num_before_last_save = len(self.names)
        address = _address(tensor)
        if any(address in fresh for fresh in self._fresh):
            self._saved[address] = tensor.untyped_storage().nbytes()
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _tensors((args, kwargs))
        for tensor in given:
            self._hold(tensor)
        _synchronize(given)
        start = time.perf_counter()
        output = func(*args, **(kwargs or {}))
        _synchronize(given)
        taken_s = time.perf_counter() - start
        made = _tensors(output)
        self._edited.append({_address(tensor) for tensor in _edited(func, args, kwargs or {})})
        self._fresh.append({_address(t): t.untyped_storage().nbytes() for t in made if _address(t) not in self._known})
        for tensor in made:
            self._hold(tensor)
        is_fake = any(isinstance(tensor, FakeTensor) for tensor in made)
        self.times_s.append(self._stand_in_s(func, args, kwargs, given, made, output) if is_fake else taken_s)
        self.names.append(str(func))
        self._operators.append(func)
        return output

    def profile(self, times_s: list[float]) -> OperatorProfile:
        # What the least of them takes is what any takes for being called, watched as it is here.
        overhead_s = min(times_s, default=0.0)
        counts: Counter[str] = Counter()
        calls = []
        for i, (name, operator) in enumerate(zip(self.names, self._operators, strict=True)):
            edited_later = set().union(*self._edited[i + 1 :])
            fresh = self._fresh[i]
            is_new = bool(fresh) and not is_view(operator) and not self._edited[i] and not edited_later & fresh.keys()
            is_attention = "attention" in name
            calls.append(
                OperatorCall(
                    name=name,
                    call=counts[name],
                    num_bytes=sum(fresh.values()),
                    time_s=max(times_s[i] - overhead_s, 0.0),
                    is_rebuilt=i < self._num_before_last_save,
                    can_be_kept=is_new and name not in _CASTS and not (is_random(operator) and not is_attention),
                    is_product=self._is_product(operator, name) and not is_attention,
                    is_attention=is_attention,
                )
            )
            counts[name] += 1
        return OperatorProfile(tuple(calls), sum(self._saved.values()))

    def _is_product(self, operator: Any, name: str) -> bool:
        # The products of all experts at once have no formula in torch's table.
        return operator._overloadpacket in self._formulas or "grouped_mm" in name

    def _stand_in_s(self, func: Any, args: Any, kwargs: Any, given: Any, made: Any, output: Any) -> float:
        moved = sum(t.numel() * t.element_size() for t in (*given, *made)) if not is_view(func) else 0
        formula = self._formulas.get(func._overloadpacket)
        flops = 0 if formula is None else int(formula(*args, **(kwargs or {}), out_val=output))
        return moved / _BYTES_PER_S + flops / _FLOPS_PER_S

    def _hold(self, tensor: torch.Tensor) -> None:
        self._known.add(_address(tensor))
        self._alive.append(tensor.untyped_storage())


@contextmanager
def _watched(block: nn.Module) -> Iterator[_Watch]:
    """Within the context the block's first call is watched; nothing of it is changed afterwards."""
    watch = _Watch()
    original = block.forward
    own = vars(block).get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        if watch.has_run or not torch.is_grad_enabled():
            return original(*args, **kwargs)
        watch.has_run = True
        watch.begin((args, kwargs, list(block.parameters())))
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda tensor: tensor), watch:
            return original(*args, **kwargs)

    block.forward = forward
    try:
        yield watch
    finally:
        if own is None:
            del block.forward
        else:
            block.forward = own


def _edited(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that the operator writes to."""
    written = [
        kwargs.get(argument.name, args[i] if i < len(args) else None)
        for i, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _tensors(written)


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _synchronize(tensors: list[torch.Tensor]) -> None:
    if any(tensor.device.type not in ("cpu", "meta") and not isinstance(tensor, FakeTensor) for tensor in tensors):
        torch.accelerator.synchronize()
