from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.workloads.output import loss_of, loss_weight_of

LOSS = torch.tensor(2.0, requires_grad=True)


@pytest.mark.parametrize(
    "output", [LOSS, LOSS.reshape(1), {"loss": LOSS, "logits": torch.ones(3)}, SimpleNamespace(loss=LOSS)]
)
def test_a_scalar_is_found_wherever_it_may_stand(output: Any) -> None:
    assert loss_of(output).shape == ()
    assert float(loss_of(output)) == 2.0


def test_the_loss_keeps_its_graph() -> None:
    weight = torch.ones(1, requires_grad=True)
    loss_of({"loss": weight * 3}).backward()
    assert weight.grad is not None
    assert float(weight.grad) == 3.0


@pytest.mark.parametrize(
    "output, message",
    [
        (torch.ones(2, 3), r"returned a float32 tensor of shape \(2, 3\); allowed are a scalar tensor, an object with"),
        (torch.tensor(3), r"returned a int64 tensor of shape \(\)"),
        ((LOSS, torch.ones(2)), r"returned a tuple of 2; allowed"),
        ({"logits": torch.ones(2)}, r"returned a dict with keys logits; allowed"),
        ({"loss": None, "logits": LOSS}, r"its loss is None, so the batch lacks what the loss needs \(labels\?\)"),
        ({"loss": 2.0}, r"a dict with keys loss whose loss is a float; allowed"),
        (SimpleNamespace(loss=torch.ones(2)), r"whose loss is a float32 tensor of shape \(2,\)"),
        (None, r"the model returned None; allowed"),
        (
            LOSS.detach(),
            r"returned a loss without a gradient.* is needed: return it undetached, computed",
        ),
    ],
)
def test_anything_else_is_refused_with_what_it_was(output: Any, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        loss_of(output)


@pytest.mark.parametrize(
    "output, weight",
    [
        (LOSS, None),
        ({"loss": LOSS}, None),
        ({"loss": LOSS, "loss_weight": 5}, 5.0),
        (SimpleNamespace(loss=LOSS, loss_weight=torch.tensor([7])), 7.0),
    ],
)
def test_the_weight_of_a_loss_is_read_where_there_is_one(output: Any, weight: float | None) -> None:
    found = loss_weight_of(output)
    assert (found if found is None else float(found)) == weight


@pytest.mark.parametrize("weight", ["many", True, torch.ones(2)])
def test_a_weight_that_is_no_number_is_refused(weight: Any) -> None:
    with pytest.raises(WorkloadError, match=r"whose loss_weight is .+; allowed is one number"):
        loss_weight_of({"loss": LOSS, "loss_weight": weight})
