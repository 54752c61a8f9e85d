"""Complete gradients as the micro-batches before leave them, without running these."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class CompleteGradients:
    """Remembers which parameters have a gradient after a backward pass.

    Args:
        model: Right after its backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        gradients = [(p, p.grad) for p in model.parameters() if p.grad is not None]
        self._parameters = [parameter for parameter, _ in gradients]
        # Others (sparse ones, views into a larger buffer) come about only as backward makes them.
        self._are_plain = all(_is_plain(parameter, gradient) for parameter, gradient in gradients)

    def make_alive(self, run_micro_batch: Callable[[], object]) -> None:
        """Gives each of these parameters a gradient; runs a micro-batch for it where nothing else will do."""
        if not self._are_plain:
            run_micro_batch()
            return
        for parameter in self._parameters:
            parameter.grad = torch.empty_like(parameter)


def _is_plain(parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
    if gradient.layout != torch.strided or gradient.stride() != parameter.stride():
        return False
    return gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
