"""Lightning: the exported Python, and the strategy's own set-up of recompute, which runs without a device."""

from __future__ import annotations

import runpy

from torch import nn

from runners.apply_policy import apply_policy
from search_spaces.policy_file import load_policy
from tuner.selfcheck.stacks.base import Exported


class LightningCheck:
    package = "lightning"

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        from lightning.fabric.strategies.fsdp import _setup_activation_checkpointing

        names = runpy.run_path(str(exported.file))
        batch = {"accumulate_grad_batches": int(names["TRAINER_ARGUMENTS"]["accumulate_grad_batches"])}
        if exported.through_python:
            apply_policy(model, load_policy(exported.policy_file))
            return batch
        strategy = names["trainer_arguments"](model).get("strategy")
        if strategy is not None:
            _setup_activation_checkpointing(model, strategy._activation_checkpointing_kwargs)
        return batch
