"""Seeding every generator that a model may draw from, comparing their streams, and silencing them."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from runners.devices.base import Device

#: Streams that are not torch's: nothing can silence what a model draws from them.
HOST_STREAMS = ("Python random", "NumPy")
#: Arguments of an operator by name.
_Given = Mapping[str, Any]
_Answer = Callable[[Any, _Given], Any]


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def stream_digests(device: Device) -> dict[str, str]:
    """Where each random stream stands now; equal digests mean equal draws from here on."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    states = {
        "torch CPU": torch.get_rng_state().numpy().tobytes(),
        **dict(zip(HOST_STREAMS, (pickle.dumps(python_state), pickle.dumps(numpy_state)), strict=True)),
    }
    if device.kind != "cpu":
        states[f"torch {device.kind}"] = device.rng_state().numpy().tobytes()
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def draws_numbers(func: Any, args: tuple[Any, ...], kwargs: _Given) -> bool:
    """Whether a call of an operator draws from a random generator of torch.

    Fused attention and recurrent layers draw for their dropout only, and nothing where it is 0.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = _by_name(func, args, kwargs)
    return all(given.get(name) != 0.0 for name in ("dropout_p", "dropout"))


class _SilencedOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Gives every random operator one fixed answer: what is kept is kept, what is drawn is the middle."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self.unsilenced: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        drawn = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return drawn
        given = _by_name(func, args, kwargs or {})
        answer = _FIXED_ANSWERS.get(func.overloadpacket)
        if answer is not None:
            return answer(drawn, given)
        if draws_numbers(func, args, kwargs or {}):
            self.unsilenced.add(str(func))
        return drawn


class _SilencedAttention(TorchFunctionMode):
    """Takes dropout out of fused attention, whose mask no other operator shows.

    What `nn.MultiheadAttention` calls within its own function is hidden from this mode, so dropout is taken out there.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        elif func is torch.nn.functional.multi_head_attention_forward:
            args, kwargs = _without_dropout(args, kwargs)
        return func(*args, **kwargs)


def _without_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = inspect.signature(torch.nn.functional.multi_head_attention_forward).bind(*args, **kwargs)
    given.arguments["dropout_p"] = 0.0
    return given.args, given.kwargs


def _by_name(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator was called with, its defaults included."""
    arguments = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    return {**defaults, **given, **kwargs}


def _fill(value: float) -> _Answer:
    return lambda drawn, _: drawn.fill_(value)


def _keep_all(drawn: tuple[torch.Tensor, torch.Tensor], given: _Given) -> tuple[torch.Tensor, torch.Tensor]:
    _, mask = drawn
    return given["input"].clone(), mask.fill_(True)


def _middle(drawn: torch.Tensor, given: _Given) -> torch.Tensor:
    return drawn.fill_((given["from"] + given["to"]) / 2)


def _mean(drawn: torch.Tensor, given: _Given) -> torch.Tensor:
    return drawn.copy_(torch.as_tensor(given["mean"], device=drawn.device))


def _lowest(drawn: torch.Tensor, given: _Given) -> torch.Tensor:
    return drawn.fill_(given.get("low", given.get("from", 0)))


def _in_order(drawn: torch.Tensor, _: _Given) -> torch.Tensor:
    return drawn.copy_(torch.arange(drawn.numel(), device=drawn.device).view_as(drawn))


_ATEN = torch.ops.aten
_FIXED_ANSWERS: dict[Any, _Answer] = {
    _ATEN.bernoulli: _fill(1.0),
    _ATEN.bernoulli_: _fill(1.0),
    _ATEN.native_dropout: _keep_all,
    _ATEN.rand: _fill(0.5),
    _ATEN.rand_like: _fill(0.5),
    _ATEN.uniform: _middle,
    _ATEN.uniform_: _middle,
    _ATEN.randn: _fill(0.0),
    _ATEN.randn_like: _fill(0.0),
    _ATEN.normal: _mean,
    _ATEN.normal_: _mean,
    _ATEN.exponential_: _fill(1.0),
    _ATEN.randint: _lowest,
    _ATEN.randint_like: _lowest,
    _ATEN.random: _lowest,
    _ATEN.random_: _lowest,
    _ATEN.randperm: _in_order,
}


@contextlib.contextmanager
def silenced() -> Iterator[set[str]]:
    """Within the context random operators answer the same whatever the size of the batch.

    Yields:
        Names of random operators that were met and could not be silenced; filled as they are met.
    """
    operators = _SilencedOperators()
    with _SilencedAttention(), operators:
        yield operators.unsilenced
