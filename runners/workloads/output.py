"""What a model returned -> its loss and how much that loss counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runners.base import WorkloadError

_ALLOWED = (
    "allowed are a scalar tensor, an object with .loss, or a dict with 'loss'; "
    "change what the model returns when it is called as model(**batch)"
)


def loss_of(output: Any) -> torch.Tensor:
    """The scalar loss in what the model returned.

    Raises:
        WorkloadError: There is none, or none to train by; the message says what was returned and what is allowed.
    """
    loss = output if isinstance(output, torch.Tensor) else _entry(output, "loss")
    if loss is None:
        hint = "; its loss is None, so the batch lacks what the loss needs (labels?)" if _names_loss(output) else ""
        raise WorkloadError(f"the model returned {_describe(output)}{hint}; {_ALLOWED}")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        where = "" if loss is output else f" whose loss is {_describe(loss)}"
        raise WorkloadError(f"the model returned {_describe(output)}{where}; {_ALLOWED}")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise WorkloadError(
            "the model returned a loss without a gradient, so nothing is trained by it; one that backward can run from "
            "is needed: return it undetached, computed outside of no_grad, and leave backward to the trial"
        )
    return loss.reshape(())


def loss_weight_of(output: Any) -> torch.Tensor | None:
    """The ``loss_weight`` beside the loss (say, the number of valid tokens it averages over); None where there is none.

    Raises:
        WorkloadError: It is there, but is not one number.
    """
    weight = None if isinstance(output, torch.Tensor) else _entry(output, "loss_weight")
    if weight is None:
        return None
    if isinstance(weight, int | float) and not isinstance(weight, bool):
        return torch.tensor(float(weight))
    if isinstance(weight, torch.Tensor) and weight.numel() == 1:
        return weight.detach().reshape(())
    raise WorkloadError(
        f"the model returned {_describe(output)} whose loss_weight is {_describe(weight)}; allowed is one number, "
        "the count that the loss is an average over"
    )


def _entry(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return output.get(name)
    return getattr(output, name, None)


def _names_loss(output: Any) -> bool:
    return "loss" in output if isinstance(output, Mapping) else hasattr(output, "loss")


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"a {kind} with keys {', '.join(map(str, value)) or 'none'}"
    if isinstance(value, tuple | list):
        return f"a {kind} of {len(value)}"
    return "None" if value is None else f"a {kind}"
