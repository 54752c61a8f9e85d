from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from runners.apply_policy import apply_policy
from runners.step_timeline.module_calls import call_targets, watched_calls
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region


class Calls:
    """Names of calls in the order in which they begin, with how deep they lie in one another."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        self._depth = 0

    @contextmanager
    def watch(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
        self.seen.append((self._depth, name))
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


def model() -> nn.Module:
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2))
    return nn.ModuleDict({"h": blocks})


def run(module: nn.Module) -> torch.Tensor:
    x = torch.ones(1, 2)
    for block in module["h"]:  # type: ignore[index]  # a dict of modules
        x = block(x)
    return x.sum()


def test_lists_that_nobody_can_call_are_no_targets() -> None:
    assert set(call_targets(model())) == {"h.0", "h.0.0", "h.0.1", "h.1", "h.1.0", "h.1.1"}


def test_calls_are_told_in_order_and_in_one_another() -> None:
    module, calls = model(), Calls()
    with watched_calls(call_targets(module), calls.watch):
        run(module)
    assert calls.seen == [(0, "h.0"), (1, "h.0.0"), (1, "h.0.1"), (0, "h.1"), (1, "h.1.0"), (1, "h.1.1")]


def test_calls_in_a_rebuild_are_told_again() -> None:
    module, calls = model(), Calls()
    policy = RecomputePolicy(BatchShape(1, 1, 1, 1), (BlockListPlacement("h", 2, (), (Region(1, 1, "block"),)),))
    with watched_calls(call_targets(module), calls.watch):
        applied = apply_policy(module, policy)
        loss = run(module)
        calls.seen.clear()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        applied.undo()
    assert calls.seen == [(0, "h.1"), (1, "h.1.0"), (1, "h.1.1")]


def test_the_model_is_as_it_was_afterwards_even_after_an_error() -> None:
    module = model()
    before = [dict(vars(part)) for part in module.modules()]
    expected = run(copy.deepcopy(module))
    with contextlib.suppress(ZeroDivisionError), watched_calls(call_targets(module), Calls().watch):
        raise ZeroDivisionError
    assert [dict(vars(part)) for part in module.modules()] == before
    assert run(module).equal(expected)


def test_what_a_call_raises_is_raised() -> None:
    module, calls = model(), Calls()
    with watched_calls(call_targets(module), calls.watch), pytest.raises(RuntimeError, match="shapes cannot"):
        module["h"][0](torch.ones(1, 3))  # type: ignore[index]  # as above
    assert calls.seen == [(0, "h.0"), (1, "h.0.0")]
