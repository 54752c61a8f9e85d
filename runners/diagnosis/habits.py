"""What one forward pass shows of how a model behaves: attention, randomness, its own recompute, changing buffers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from runners.devices.base import Device
from runners.diagnosis.own_checkpoints import watched_checkpoints
from runners.diagnosis.places import Places, PlaceStack
from runners.diagnosis.records import AttentionUse, DropoutModules, ModelHabits, RandomOperator
from runners.inspection.block_units import ATTENTION
from runners.proof.randomness import draws_numbers, stream_digests
from runners.rig import Rig

#: Kernels of attention by words in their names: torch's own, and those that other packages register.
_ATTENTION_WORDS = ("attention", "attn")
_MATH_KERNEL = "scaled_dot_product_attention (math)"
#: `nn.MultiheadAttention` multiplies by itself where its weights are asked for.
_WEIGHTS_KERNEL = "multi_head_attention_forward (need_weights)"
_SOFTMAX = (torch.ops.aten._softmax, torch.ops.aten._safe_softmax)


def observe_habits(rig: Rig, places: Places, micro_batch: Mapping[str, Any], device: Device) -> ModelHabits:
    """Runs one forward pass with gradients, as the model is given; its buffers and the random generators advance."""
    model = rig.model
    stack = PlaceStack(places)
    operators = _Operators(stack)
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    streams = stream_digests(device)
    with watched_checkpoints(model, stack) as checkpoints, stack.following(), _AttentionCalls(operators), operators:
        rig.step.forward(micro_batch)
    streams_after = stream_digests(device)
    return ModelHabits(
        attention=tuple(operators.attention()),
        own_checkpoints=tuple(checkpoints.found()),
        dropout=tuple(_dropout(model)),
        random_operators=tuple(operators.random()),
        random_streams=tuple(name for name, digest in streams.items() if streams_after[name] != digest),
        changed_buffers=tuple(name for name, buffer in model.named_buffers() if _differs(buffers.get(name), buffer)),
    )


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Counts the operators that attend or draw, by the module that runs them."""

    def __init__(self, stack: PlaceStack) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._stack = stack
        self._attention: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._random: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._is_in_call = False
        self._saw_kernel = False

    def attention(self) -> Iterator[AttentionUse]:
        for kernel, modules in self._attention.items():
            is_fused = kernel not in (_MATH_KERNEL, _WEIGHTS_KERNEL, "softmax")
            yield AttentionUse(
                kernel=kernel, is_fused=is_fused, num_calls=modules.total(), modules=tuple(filter(None, modules))
            )

    def random(self) -> Iterator[RandomOperator]:
        for operator, modules in self._random.items():
            yield RandomOperator(operator=operator, num_calls=modules.total(), modules=tuple(filter(None, modules)))

    def attending(self, attend: Any, fallback: str = _MATH_KERNEL) -> Any:
        """Runs a call of torch's attention and notes which kernel it takes, the fallback where it takes none."""
        self._is_in_call, self._saw_kernel = True, False
        try:
            output = attend()
        finally:
            self._is_in_call = False
        if not self._saw_kernel:
            self._attention[fallback][self._module()] += 1
        return output

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = str(func._overloadpacket)
        if any(word in name.lower() for word in _ATTENTION_WORDS):
            self._attention[name][self._module()] += 1
            self._saw_kernel = True
        elif func._overloadpacket in _SOFTMAX and not self._is_in_call and self._is_in_attention():
            self._attention["softmax"][self._module()] += 1
        if draws_numbers(func, args, kwargs or {}):
            self._random[name][self._module()] += 1
        return func(*args, **(kwargs or {}))

    def _is_in_attention(self) -> bool:
        top = self._stack.top
        return top is not None and top.unit is not None and ATTENTION in top.unit

    def _module(self) -> str:
        return "" if self._stack.top is None else self._stack.top.module


class _AttentionCalls(TorchFunctionMode):
    """Tells the operators when torch's attention begins and ends: its fallback is no operator of its own."""

    def __init__(self, operators: _Operators) -> None:
        super().__init__()
        self._operators = operators

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            return self._operators.attending(lambda: func(*args, **(kwargs or {})))
        if func is F.multi_head_attention_forward:  # What it calls within is hidden from this mode.
            fallback = _WEIGHTS_KERNEL if (kwargs or {}).get("need_weights", True) else _MATH_KERNEL
            return self._operators.attending(lambda: func(*args, **(kwargs or {})), fallback)
        return func(*args, **(kwargs or {}))


def _dropout(model: nn.Module) -> Iterator[DropoutModules]:
    by_p: defaultdict[float, list[str]] = defaultdict(list)
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            by_p[module.p].append(name)
    for p, names in sorted(by_p.items()):
        yield DropoutModules(p=p, modules=tuple(names))


def _differs(before: torch.Tensor | None, after: torch.Tensor) -> bool:
    if before is None or before.shape != after.shape or before.dtype != after.dtype:
        return True
    return not torch.allclose(before, after, rtol=0, atol=0, equal_nan=after.dtype.is_floating_point)
