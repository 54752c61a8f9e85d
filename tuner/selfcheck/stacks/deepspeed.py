"""DeepSpeed: its own reading of the JSON, which checks that the batch keys agree; it places nothing."""

from __future__ import annotations

from torch import nn

from runners.apply_policy import apply_policy
from search_spaces.policy_file import load_policy
from tuner.selfcheck.stacks.base import Exported


class DeepSpeedCheck:
    package = "deepspeed"

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        from deepspeed.runtime.config import DeepSpeedConfig

        config = DeepSpeedConfig(str(exported.file))
        if exported.through_python:
            apply_policy(model, load_policy(exported.policy_file))
        return {
            "train_batch_size": config.train_batch_size,
            "train_micro_batch_size_per_gpu": config.train_micro_batch_size_per_gpu,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
        }
