"""accelerate: from the config file to the FSDP plugin as `accelerate launch` does it, and the plugin's own wrapping."""

from __future__ import annotations

import os
from types import SimpleNamespace

from torch import nn

from runners.apply_policy import apply_policy
from search_spaces.policy_file import load_policy
from tuner.selfcheck.stacks.base import CannotCheckError, Exported


class AccelerateCheck:
    package = "accelerate"

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser
        from accelerate.utils import FullyShardedDataParallelPlugin
        from accelerate.utils.fsdp_utils import fsdp2_apply_ac
        from accelerate.utils.launch import prepare_multi_gpu_env

        parser = launch_command_parser()
        arguments, *_ = _validate_launch_command(
            parser.parse_args(["--config_file", str(exported.file), "--num_machines", "1", "train.py"])
        )
        environment = prepare_multi_gpu_env(arguments)
        os.environ.update({name: value for name, value in environment.items() if name.startswith("FSDP")})
        batch = {"num_processes": int(arguments.num_processes)}
        if exported.through_python:
            apply_policy(model, load_policy(exported.policy_file))
            return batch
        try:
            plugin = FullyShardedDataParallelPlugin()
        except RuntimeError as error:
            raise CannotCheckError(f"accelerate's plugin does not start here: {error}") from error
        plugin.set_auto_wrap_policy(model)
        if plugin.activation_checkpointing:
            fsdp2_apply_ac(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)), model)
        return batch
