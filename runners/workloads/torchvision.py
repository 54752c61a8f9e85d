"""``torchvision:NAME``: torchvision's image classifiers, without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from runners.base import WorkloadError
from runners.workloads.base import BatchMaker
from runners.workloads.image_classifier import give_loss, given_image_size, image_batches
from runners.workloads.nearest import known_names
from runners.workloads.optional_package import import_optional
from runners.workloads.user_code import user_code

_NUM_CLASSES = 1000  # What every classifier of torchvision has unless told otherwise.


class TorchvisionFactory:
    """Builds one of torchvision's image classifiers by name."""

    reads_sequences = False

    def __init__(self, name: str, args: Mapping[str, Any], *, dtype: torch.dtype) -> None:
        self._factory = f"torchvision:{name}"
        self._name = name
        self._args = dict(args)
        self._dtype = dtype
        self._models = import_optional("torchvision", factory=self._factory).models
        classifiers = self._models.list_models(module=self._models)
        if name not in classifiers:
            raise WorkloadError(
                f"model.factory is {self._factory}, which is no image classifier of the installed torchvision; "
                f"{known_names(name, classifiers)}"
            )

    def build(self) -> nn.Module:
        with user_code(f"model.factory is {self._factory}, which with these model.args"):
            model: nn.Module = self._models.get_model(self._name, weights=None, **self._args)
        return give_loss(model)

    def batch_maker(self, model: nn.Module, rebuild: Callable[[], nn.Module]) -> BatchMaker:
        num_classes = int(self._args.get("num_classes", _NUM_CLASSES))
        size = given_image_size(self._args) or self._trained_size()
        return image_batches(image_size=size, num_channels=3, num_classes=num_classes, dtype=self._dtype)

    def _trained_size(self) -> tuple[int, int]:
        """The crop that the model's published weights were trained for; known without downloading them."""
        weights = self._models.get_model_weights(self._name).DEFAULT
        crop = weights.transforms().crop_size
        return int(crop[0]), int(crop[-1])
