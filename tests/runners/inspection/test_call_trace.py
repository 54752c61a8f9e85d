from __future__ import annotations

import pytest
import torch
from torch import nn

from runners.inspection.call_trace import traced_calls


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method(x)

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_calls_are_nested_and_in_the_order_they_began() -> None:
    outer = Outer()
    with traced_calls([(outer.inner, "forward"), (outer, "method"), (outer, "forward")]) as trace:
        outer(torch.zeros(1, 4))
    whole, method, inner = trace.calls
    assert [call.attribute for call in trace.calls] == ["forward", "method", "forward"]
    assert list(inner.around()) == [method, whole]
    assert inner.is_within([whole])
    assert not whole.is_within([inner])


def test_output_bytes_are_those_of_the_leaf_modules_inside() -> None:
    outer = Outer()
    other = nn.Linear(4, 2)
    with traced_calls([(outer, "forward")]) as trace:
        outer(torch.zeros(1, 4))
        other(torch.zeros(1, 4))
    assert trace.calls[0].output_bytes == 8 * 4


def test_a_callable_that_was_replaced_before_is_put_back() -> None:
    outer = Outer()
    replaced = outer.forward
    outer.forward = replaced  # type: ignore[method-assign]  # as a policy that was applied before would leave it
    with traced_calls([(outer, "forward"), (outer, "method")]) as trace:
        outer(torch.zeros(1, 4))
    assert len(trace.calls) == 2
    assert vars(outer)["forward"] is replaced
    assert "method" not in vars(outer)


def test_an_error_in_the_model_passes_and_leaves_nothing_behind() -> None:
    outer = Outer()
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        traced_calls([(outer, "forward"), (outer.inner, "forward")]),
    ):
        outer(torch.zeros(1, 3))
    assert "forward" not in vars(outer)
    assert "forward" not in vars(outer.inner)


def test_calls_after_an_error_that_the_model_caught_have_the_right_parent() -> None:
    class Forgiving(Outer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.method(x[:, :3])
            except RuntimeError:
                return self.inner(x)

    model = Forgiving()
    with traced_calls([(model, "forward"), (model, "method"), (model.inner, "forward")]) as trace:
        model(torch.zeros(1, 4))
    assert trace.calls[-1].parent is trace.calls[0]
