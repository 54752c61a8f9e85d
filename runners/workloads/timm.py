"""``timm:NAME``: timm's image classifiers, without weights."""

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


class TimmFactory:
    """Builds one of timm's models by name."""

    reads_sequences = False

    def __init__(self, name: str, args: Mapping[str, Any], *, dtype: torch.dtype) -> None:
        self._factory = f"timm:{name}"
        self._name = name
        self._args = dict(args)
        self._dtype = dtype
        self._timm = import_optional("timm", factory=self._factory)
        if not self._timm.is_model(name):
            raise WorkloadError(
                f"model.factory is {self._factory}, which is no model of the installed timm; "
                f"{known_names(name, self._timm.list_models())}"
            )

    def build(self) -> nn.Module:
        with user_code(f"model.factory is {self._factory}, which with these model.args"):
            model: nn.Module = self._timm.create_model(self._name, pretrained=False, **self._args)
        return give_loss(model)

    def batch_maker(self, model: nn.Module, rebuild: Callable[[], nn.Module]) -> BatchMaker:
        described: Any = model
        if not described.num_classes:
            raise WorkloadError(
                f"model.factory is {self._factory}, which has no classifier as built; set num_classes in model.args"
            )
        channels, height, width = described.pretrained_cfg["input_size"]
        return image_batches(
            image_size=given_image_size(self._args) or (height, width),
            num_channels=int(self._args.get("in_chans", channels)),
            num_classes=int(described.num_classes),
            dtype=self._dtype,
        )
