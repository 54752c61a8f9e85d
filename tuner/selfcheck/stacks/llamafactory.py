"""LLaMA-Factory: its own arguments, and the function with which it prepares a model for training."""

from __future__ import annotations

from dataclasses import fields

import yaml
from torch import nn

from tuner.selfcheck.stacks.base import CannotCheckError, Exported


class LlamaFactoryCheck:
    package = "llamafactory"

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        if exported.version == "v1":
            raise CannotCheckError("the trainer of USE_V1 does not start without a device")
        from llamafactory.hparams.model_args import ModelArguments
        from llamafactory.model.model_utils.checkpointing import prepare_model_for_training

        data = yaml.safe_load(exported.file.read_text())
        known = {field.name for field in fields(ModelArguments) if field.init}
        arguments = ModelArguments(
            model_name_or_path="model", **{name: value for name, value in data.items() if name in known}
        )
        prepare_model_for_training(model, arguments)
        names = ("per_device_train_batch_size", "gradient_accumulation_steps")
        return {name: int(data[name]) for name in names}
