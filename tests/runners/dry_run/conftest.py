"""How tests of the dry run name small models, place policies at random and measure real peaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.dry_run.dry_run import DryRun
from runners.dry_run.profile_check import random_placement
from runners.rig import Rig, RigStep
from runners.trial import InspectionSpec, WorkloadSpec
from runners.worker import TrialWorker
from runners.worker_session import WorkerSession
from runners.workloads.load import load_workload
from search_spaces.choices import SearchChoices
from search_spaces.policy import RecomputePolicy

ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")
_MODELS = str(Path(__file__).parents[1] / "models")
_LLAMA: dict[str, Any] = {
    "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256,
}  # fmt: skip
_GPT: dict[str, Any] = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256, "max_sequence_length": 32}
WORKLOADS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_factory": "huggingface:gpt2",
        "model_args": {"n_layer": 5, "n_embd": 64, "n_head": 4, "vocab_size": 256},
        "sequence_length": 32,
    },
    "llama": {"model_factory": "huggingface:llama", "model_args": _LLAMA, "sequence_length": 32},
    "llama_bf16": {
        "model_factory": "huggingface:llama", "model_args": _LLAMA, "sequence_length": 32, "dtype": "bfloat16"
    },
    "bert": {
        "model_factory": "huggingface:bert",
        "model_args": {
            "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4,
            "vocab_size": 256,
        },
        "sequence_length": 32,
    },
    "t5": {
        "model_factory": "huggingface:t5",
        "model_args": {
            "num_layers": 2, "num_decoder_layers": 3, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32,
            "vocab_size": 256,
        },
        "sequence_length": 32,
    },
    "vit": {
        "model_factory": "huggingface:vit",
        "model_args": {
            "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
            "image_size": 32, "patch_size": 8,
        },
    },
    "gpt": {"model_factory": "runners.workloads.gpt:gpt", "model_args": _GPT, "sequence_length": 32},
    "gpt_autocast_sgd": {
        "model_factory": "runners.workloads.gpt:gpt", "model_args": _GPT, "sequence_length": 32,
        "autocast": "bfloat16", "optimizer_name": "sgd", "optimizer_args": {"lr": 0.1, "momentum": 0.9},
    },
    "mixtral": {
        "model_factory": "huggingface:mixtral",
        "model_args": {
            "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 256,
        },
        "sequence_length": 32,
    },
    "copied_layers": {
        "model_factory": "kernels.py:tagger", "batch_factory": "kernels.py:padded", "base_dir": _MODELS
    },
    "convolutions": {
        "model_factory": "kernels.py:painter", "batch_factory": "kernels.py:images", "base_dir": _MODELS
    },
    "recurrent": {"model_factory": "kernels.py:reader", "batch_factory": "kernels.py:series", "base_dir": _MODELS},
}  # fmt: skip


class SmallModel:
    """A workload with what a search would choose between, at a global batch of 4."""

    def __init__(self, name: str) -> None:
        self.spec = WorkloadSpec(**WORKLOADS[name], device="cpu")
        shape = TrialWorker().inspect(InspectionSpec(workload=self.spec, on_fake_tensors=True)).shape
        self.choices = SearchChoices(shape, 4, (1, 2, 4), ACTIONS)
        self.dry_run = DryRun(load_workload(self.spec), self.spec)

    def policies(self, count: int, seed: int) -> Iterator[RecomputePolicy]:
        """Random ones: any size, a few runs of blocks under any actions."""
        draw = random.Random(seed)
        for number in range(count):
            batch = self.choices.batches[number % 3]
            placements = tuple(random_placement(of, draw) for of in self.choices.block_lists)
            yield RecomputePolicy(batch, placements)

    def measured_peak_bytes(self, policy: RecomputePolicy) -> int:
        """As a trial measures it."""
        session = WorkerSession(self.spec, global_batch_size=4)
        live_bytes = session.settle()
        batches = session.batches(policy)
        rig = Rig(session.workload, self.spec, session.device, policy)
        return session.device.measure_peak(RigStep(rig, batches), live_bytes_before_trial=live_bytes).capped_bytes


@pytest.fixture(scope="session")
def small_model() -> Any:
    models: dict[str, SmallModel] = {}

    def get(name: str) -> SmallModel:
        if name not in models:
            models[name] = SmallModel(name)
        return models[name]

    return get
