"""Image classifiers that return logits, trained with cross entropy without a wrapper that would rename anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from runners.base import WorkloadError
from runners.workloads.base import BatchMaker


def give_loss(model: nn.Module) -> nn.Module:
    """Lets the model be called with images and labels and return its loss; its modules and names stay as they are."""
    model.forward = ForwardWithLoss(model.forward)
    return model


class ForwardWithLoss:
    """Stands in for a classifier's forward. An object, so that a deep copy of the model calls the copy."""

    def __init__(self, forward: Callable[[torch.Tensor], Any]) -> None:
        self.forward = forward

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = list(_logits(self.forward(images)))
        if not logits:
            raise WorkloadError("the model returned no logits; only image classifiers are supported by this factory")
        # Some models (GoogLeNet, Inception) have auxiliary heads while training; each is taught the same labels.
        losses = [F.cross_entropy(each, labels) for each in logits]
        return torch.stack(losses).sum()


def image_batches(
    *, image_size: tuple[int, int], num_channels: int, num_classes: int, dtype: torch.dtype
) -> BatchMaker:
    """Makes random images with random labels."""

    def make_batch(micro_batch_size: int, sequence_length: int | None) -> dict[str, Any]:
        return {
            "images": torch.randn(micro_batch_size, num_channels, *image_size, dtype=dtype),
            "labels": torch.randint(0, num_classes, (micro_batch_size,)),
        }

    return make_batch


def given_image_size(args: Mapping[str, Any]) -> tuple[int, int] | None:
    """Height and width that model.args ask for, under the names that image models use; None where they do not."""
    size = args.get("image_size", args.get("img_size"))
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def _logits(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, tuple):
        for part in output:
            yield from _logits(part)
