from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from tuner.config import OptimizerName, SearchConfig, Target
from tuner.memory_size import MemorySize

_DEFAULTS: dict[str, Any] = {
    "study": "study",
    "model": {
        "factory": "huggingface:gpt2",
        "args": {},
        "dtype": "float32",
        "autocast": None,
        "compile": None,
        "compile_memory_budget": None,
    },
    "batch": {"global_batch_size": 8, "micro_batch_sizes": "auto", "sequence_length": None, "factory": None},
    "optimizer": {"name": "adamw", "args": {"lr": 0.0001}},
    "memory_cap": "600MiB",
    "placement": {
        "blocks": "auto",
        "units": "auto",
        "actions": ("none", "attention", "mlp", "attention+mlp", "block", "segment"),
        "segment_sizes": "auto",
        "preserve_rng_state": True,
        "target": None,
    },
    "search": {"num_trials": 30, "time_limit": "10m", "sampler": "model_guided", "seed": 0},
    "measurement": {"warmup_steps": 2, "min_steps": 5, "max_steps": 50, "relative_spread": 0.02, "verify": True},
    "runner": {
        "device": "auto",
        "ray_address": None,
        "ship_code": True,
        "accelerator_type": None,
        "max_parallel_trials": None,
        "priority": 1.0,
        "resources_per_trial": "auto",
        "data_parallel_degree": 1,
        "strategy": "none",
        "pipeline_stages": 1,
        "reshard_after_forward": True,
        "trial_timeout": "10m",
        "isolation": "worker",
    },
    "storage": None,
    "tracking": {"uri": None, "experiment": None},
    "output_dir": "runs",
}


def config_with(path: str = "", value: Any = None) -> SearchConfig:
    data: dict[str, Any] = {
        "model": {"factory": "huggingface:gpt2"},
        "batch": {"global_batch_size": 8},
        "memory_cap": "600MiB",
    }
    if path:
        *sections, key = path.split(".")
        place = data
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return SearchConfig.model_validate(data)


def test_everything_but_three_options_has_a_default() -> None:
    assert config_with().model_dump() == _DEFAULTS


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("study", ["gpt2-12l", "a", "A_b.c-1", "_x", "x" * 80]),
        (
            "model.factory",
            ["pkg.mod:fn", "path/file.py:fn", "torchvision:resnet18", "timm:vit_base", "huggingface:dir"],
        ),
        ("model.args", [{}, {"a": [1, {"b": None}], "c": float("inf")}]),
        ("model.dtype", ["float32", "bfloat16", "float16", "float64"]),
        ("model.autocast", [None, "bfloat16", "float16"]),
        ("model.compile", [None, "blocks", "model"]),
        ("model.compile_memory_budget", [None]),
        ("batch.global_batch_size", [1, 8, 10_000_000]),
        ("batch.micro_batch_sizes", ["auto", (8,), (1, 2, 4, 8)]),
        ("batch.sequence_length", [None, 1, 4096, (512, 128)]),
        ("batch.factory", [None, "data.py:make"]),
        ("optimizer.name", list(get_args(OptimizerName))),
        ("optimizer.args", [{}, {"lr": 1e-3, "betas": [0.9, 0.95]}]),
        ("memory_cap", ["80GiB", "24 GB", "90%"]),
        ("placement.blocks", ["auto", ("transformer.h",), ("encoder.block", "decoder.block")]),
        ("placement.units", ["auto", {"attention": "attn", "mlp": "ff_chunk()", "moe-router": "moe.router"}]),
        ("placement.actions", [("none",), ("attention", "block"), ("cross_attention", "segment")]),
        ("placement.segment_sizes", ["auto", (1, 2, 3, 5, 8)]),
        ("placement.preserve_rng_state", [True, False, "search"]),
        ("placement.target", [None, *get_args(Target)]),
        ("search.num_trials", [1, 1000]),
        ("search.time_limit", ["90s", "1h30m"]),
        ("search.sampler", ["model_guided", "gp", "nsga2", "random", "grid"]),
        ("search.seed", [0, 2**32 - 1]),
        ("measurement.warmup_steps", [0, 3]),
        ("measurement.min_steps", [1, 50]),
        ("measurement.max_steps", [5, 500]),
        ("measurement.relative_spread", [0.5, 1e-3]),
        ("measurement.verify", [True, False]),
        ("runner.device", ["auto", "cpu", "cuda", "npu"]),
        ("runner.ray_address", [None, "ray://head:10001", "auto"]),
        ("runner.ship_code", [True, False]),
        ("runner.accelerator_type", [None, "H100"]),
        ("runner.max_parallel_trials", [None, 4]),
        ("runner.priority", [0.5, 3.0]),
        ("runner.resources_per_trial", ["auto", {"GPU": 1}, {"NPU": 8}, {"CPU": 0.5}, {"tpu-v4": 1, "CPU": 2}]),
        ("runner.data_parallel_degree", [1]),
        ("runner.strategy", ["none", "ddp", "fsdp2"]),
        ("runner.pipeline_stages", [1]),
        ("runner.reshard_after_forward", [True]),
        ("runner.trial_timeout", ["10m"]),
        ("runner.isolation", ["worker", "process"]),
        ("storage", [None, "sqlite:///study.db", "postgresql://u:p@host/db"]),
        ("tracking.uri", [None, "sqlite:///mlflow.db", "http://127.0.0.1:5000"]),
        ("tracking.experiment", [None, "gpt2 on H100"]),
        ("output_dir", ["runs", "/data/some runs"]),
    ],
)
def test_every_option_takes_its_values_and_keeps_them(path: str, values: list[Any]) -> None:
    for value in values:
        kept: Any = config_with(path, value)
        for part in path.split("."):
            kept = getattr(kept, part)
        assert kept == value


def test_lists_of_a_file_become_tuples() -> None:
    assert config_with("batch.micro_batch_sizes", [1, 2]).batch.micro_batch_sizes == (1, 2)


def test_amounts_are_also_given_in_base_units() -> None:
    config = config_with("search.time_limit", "1h30m")
    assert config.search.time_limit_s == 5400
    assert config.runner.trial_timeout_s == 600
    assert config.memory_cap_size == MemorySize(600 * 2**20)
    assert config_with("memory_cap", "90%").memory_cap_size.bytes_on(1000) == 900


def test_units_of_an_action_are_put_in_order() -> None:
    assert config_with("placement.actions", ["mlp+attention"]).placement.actions == ("attention+mlp",)


@pytest.mark.parametrize(
    ("units", "actions"),
    [
        ({"attention": "a", "mlp": "m"}, ("none", "attention", "mlp", "attention+mlp", "block", "segment")),
        ({"mlp": "m", "router": "r"}, ("none", "mlp", "router", "block", "segment")),
    ],
)
def test_units_that_are_named_are_actions_where_none_are_named(units: dict[str, str], actions: tuple[str, ...]) -> None:
    assert config_with("placement.units", units).placement.actions == actions


def test_the_base_folder_comes_with_the_context_and_is_no_option() -> None:
    data = config_with().model_dump(mode="json")
    assert SearchConfig.model_validate(data).base_dir == Path()
    assert SearchConfig.model_validate(data, context={"base_dir": Path("/x")}).base_dir == Path("/x")
    with pytest.raises(ValidationError, match="base_dir"):
        SearchConfig.model_validate({**data, "base_dir": "/x"})


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config_with().batch.global_batch_size = 4  # type: ignore[misc]  # that it is refused is the test


def test_contradictions_are_found_without_a_file_too() -> None:
    with pytest.raises(ValidationError, match=r"batch\.micro_batch_sizes\[0\] is 3, which does not divide"):
        config_with("batch.micro_batch_sizes", [3])


def test_pydantics_own_messages_hold_no_credentials() -> None:
    with pytest.raises(ValidationError, match="storage") as caught:
        config_with("storage", "mysql://user:secret@host/db")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value)


def test_every_option_is_described() -> None:
    for name, section in SearchConfig.model_fields.items():
        assert section.description, name
        for key, option in getattr(section.annotation, "model_fields", {}).items():
            assert option.description, f"{name}.{key}"


def test_every_optimizer_name_is_a_class_of_torch() -> None:
    classes = {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    # An optimizer of a step that calls the loss again cannot be timed as one step.
    assert set(classes) - set(get_args(OptimizerName)) == {"optimizer", "lbfgs"}
    assert set(get_args(OptimizerName)) <= set(classes)


def test_a_list_of_one_sequence_length_is_that_length() -> None:
    listed, alone = (
        SearchConfig.model_validate(
            {
                "model": {"factory": "huggingface:gpt2"},
                "batch": {"global_batch_size": 8, "sequence_length": length},
                "memory_cap": "1GiB",
            }
        )
        for length in ([64], 64)
    )
    assert listed == alone
