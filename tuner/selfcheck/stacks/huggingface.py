"""transformers: its own parser of arguments, and the call with which its Trainer turns recompute on."""

from __future__ import annotations

from typing import Any

from torch import nn

from runners.apply_policy import apply_policy
from search_spaces.policy_file import load_policy
from tuner.selfcheck.stacks.base import CannotCheckError, Exported


class HuggingFaceCheck:
    package = "transformers"

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        from transformers import HfArgumentParser, TrainingArguments

        (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(exported.file))  # type: ignore[arg-type]  # its annotation is narrower than its use
        if exported.through_python:
            apply_policy(model, load_policy(exported.policy_file))
        elif _is_on(arguments):
            turn_on(model, dict(_keyword_arguments(arguments)))
        return {
            "per_device_train_batch_size": arguments.per_device_train_batch_size,
            "gradient_accumulation_steps": arguments.gradient_accumulation_steps,
        }


def turn_on(model: Any, arguments: dict[str, Any]) -> None:
    """What the Trainer does with the arguments of recompute.

    Raises:
        CannotCheckError: The model is none of transformers'.
    """
    own = {name: arguments.pop(name) for name in ("every_n_layers", "offload") if name in arguments}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments, **own)
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments, **own)
    else:
        raise CannotCheckError(
            f"{type(model).__name__} is no model of transformers, whose Trainer could not recompute it; use --python"
        )


def _is_on(arguments: Any) -> bool:
    return bool(getattr(arguments, "activation_checkpointing", None) or arguments.gradient_checkpointing)


def _keyword_arguments(arguments: Any) -> dict[str, Any]:
    newer = getattr(arguments, "activation_checkpointing_kwargs", None)
    return newer or arguments.gradient_checkpointing_kwargs or {}
