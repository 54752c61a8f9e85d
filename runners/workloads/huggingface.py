"""``huggingface:TYPE_OR_DIR``: any model that transformers builds from a config, without network or weights."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runners.base import WorkloadError
from runners.workloads.base import BatchMaker
from runners.workloads.huggingface_batch import transformers_batch_maker
from runners.workloads.huggingface_config import transformers_config
from runners.workloads.huggingface_task import task_of_config
from runners.workloads.optional_package import import_optional
from runners.workloads.position_limit import longest_sequence
from runners.workloads.user_code import user_code


class HuggingFaceFactory:
    """Builds models of one config of transformers.

    Args:
        name: A model type such as ``gpt2``, or a folder with a ``config.json``.
        args: Overrides of the config's fields.
        makes_batches: The batches are made here, so their length is checked here.
    """

    def __init__(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        base_dir: Path,
        dtype: torch.dtype,
        sequence_lengths: Sequence[int],
        makes_batches: bool,
    ) -> None:
        self._factory = f"huggingface:{name}"
        self._sequence_lengths = tuple(sequence_lengths)
        self._transformers = _quiet_offline_transformers(self._factory)
        self._config = transformers_config(self._transformers, name, args, base_dir=base_dir)
        # Built in the right type at once: transformers keeps some buffers in float32 on purpose.
        setattr(self._config, "dtype" if hasattr(self._config, "dtype") else "torch_dtype", dtype)
        task = task_of_config(self._config)
        if task is None:
            raise WorkloadError(
                f"model.factory is {self._factory}, but no class of the installed transformers computes a loss for "
                f"model type {self._config.model_type} that we know how to feed; name a function of your own that "
                "returns the model, path/file.py:fn, and batch.factory"
            )
        self._task = task
        self.reads_sequences = "text" in task.inputs
        if makes_batches and self.reads_sequences and not sequence_lengths:
            raise WorkloadError(
                f"batch.sequence_length is not set, and {self._factory} reads text; set it to tokens per sample"
            )

    def build(self) -> nn.Module:
        auto_class = getattr(self._transformers, self._task.auto_class)
        with user_code(f"model.factory is {self._factory}, which with these model.args"):
            model: nn.Module = auto_class.from_config(copy.deepcopy(self._config))
        self._check_positions(model)
        return model

    def batch_maker(self, model: nn.Module, rebuild: Callable[[], nn.Module]) -> BatchMaker:
        maker = transformers_batch_maker(model)
        if maker is None:
            raise WorkloadError(
                f"model.factory is {self._factory}, and it is not known what a {type(model).__name__} is trained on; "
                "name batch.factory as path/file.py:fn"
            )
        return maker

    def _check_positions(self, model: nn.Module) -> None:
        limit = longest_sequence(model) if self.reads_sequences else None
        longest = max(self._sequence_lengths, default=0)
        if limit is None or longest <= limit.tokens:
            return
        names = ("max_position_embeddings", "max_target_positions", "max_seq_len")
        field = next((name for name in names if hasattr(self._config, name)), names[0])
        field = getattr(self._config, "attribute_map", {}).get(field, field)
        raise WorkloadError(
            f"batch.sequence_length {'is' if len(self._sequence_lengths) == 1 else 'holds'} {longest}, but "
            f"{self._factory} has positions for {limit.tokens} tokens ({limit.table}); lower it, or set {field} in "
            "model.args"
        )


def _quiet_offline_transformers(factory: str) -> Any:
    # Read by transformers when it is first imported; nothing here may reach for the network.
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = import_optional("transformers", factory=factory)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
