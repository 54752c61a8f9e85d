"""Which modules run a second time, in backward: what is really recomputed, whoever placed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def leaf_names(model: nn.Module) -> dict[nn.Module, str]:
    """Modules without children, by the name that they have before anything wraps them."""
    return {module: name for name, module in model.named_modules() if not list(module.children())}


def recomputed_modules(leaves: dict[nn.Module, str], run_step: Callable[[], torch.Tensor]) -> set[str]:
    """Names of the leaves whose forward runs in backward as well.

    Args:
        leaves: From before anything was wrapped.
        run_step: Runs forward and gives back the loss.
    """
    found: set[str] = set()
    is_backward = False

    def note(module: nn.Module, inputs: Any) -> None:
        if is_backward:
            found.add(leaves[module])

    handles = [leaf.register_forward_pre_hook(note) for leaf in leaves]
    try:
        loss = run_step()
        is_backward = True
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    finally:
        for handle in handles:
            handle.remove()
    return found
