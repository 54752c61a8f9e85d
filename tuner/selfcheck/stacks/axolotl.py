"""axolotl: its own schema, and the call of transformers to which it hands the arguments."""

from __future__ import annotations

import yaml
from torch import nn

from tuner.selfcheck.stacks.base import Exported
from tuner.selfcheck.stacks.huggingface import turn_on

#: What the schema asks for beside the exported keys.
_REQUIRED = {"base_model": "model", "learning_rate": 1e-4, "datasets": [{"path": "data", "type": "alpaca"}]}


class AxolotlCheck:
    package = "axolotl"

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        from axolotl.utils.schemas.config import AxolotlInputConfig

        config = AxolotlInputConfig(**_REQUIRED, **yaml.safe_load(exported.file.read_text()))
        if config.gradient_checkpointing:
            turn_on(model, dict(config.gradient_checkpointing_kwargs))
        return {
            "micro_batch_size": config.micro_batch_size,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
        }
