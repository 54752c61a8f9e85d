"""Exported files, read by the stacks' own code where it installs without a device: what it understands is the policy.

Each stack runs in a process of its own: some change torch for everybody when they are imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from exported_studies import NUM_BLOCKS, context, measured, policy, record, study_of

from tuner.export.export_trial import export_trial
from tuner.export.registry import EXPORTERS

pytestmark = pytest.mark.slow


def judged(
    program: str, target: str, column: str, tmp_path: Path, *, version: str | None = None, preserve: bool = True
) -> Any:
    """What the program prints, as JSON, about the file that is exported for one kind of placement."""
    exporter = EXPORTERS[target]
    study = study_of(measured(0, policy(column, preserve_rng_state=preserve)))
    text = export_trial(exporter, study, record(study), context(exporter, version or exporter.versions[0].name))
    file = tmp_path / ("config.json" if exporter.header_syntax == "json" else "config.yaml")
    file.write_text(text)
    environment = {**os.environ, "DISABLE_VERSION_CHECK": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, text=True, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


#: Reads the file as a training script would, and lets the Trainer's call place recompute on a model.
HUGGINGFACE = """
import json, sys
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, TrainingArguments

(args,) = HfArgumentParser(TrainingArguments).parse_yaml_file(sys.argv[1])
model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=16, n_head=2, vocab_size=32))
if args.activation_checkpointing:
    kwargs = dict(args.activation_checkpointing_kwargs)
    own = {name: kwargs.pop(name) for name in ("every_n_layers", "offload")}
    model.activation_checkpointing_enable(activation_checkpointing_kwargs=kwargs, **own)
layers = model.transformer.h
print(json.dumps({
    "batch": [args.per_device_train_batch_size, args.gradient_accumulation_steps, args.auto_find_batch_size],
    "recomputed": [i for i, layer in enumerate(layers) if layer.gradient_checkpointing],
    "kwargs": layers[0]._gradient_checkpointing_func.keywords if args.activation_checkpointing else None,
    "use_cache": args.use_cache,
}))
"""


@needs("transformers", "accelerate")
@pytest.mark.parametrize(
    "column, recomputed, preserve",
    [
        ("none", [], True),
        ("block", list(range(NUM_BLOCKS)), True),
        ("rng off", list(range(NUM_BLOCKS)), False),
        ("block%k first", [0, 3, 6, 9], True),
    ],
)
def test_transformers_recomputes_the_layers_of_the_policy(
    column: str, recomputed: list[int], preserve: bool, tmp_path: Path
) -> None:
    found = judged(HUGGINGFACE, "huggingface", column, tmp_path, preserve=preserve)
    assert found["batch"] == [2, 4, False]
    assert found["recomputed"] == recomputed
    assert found["kwargs"] == ({"use_reentrant": False, "preserve_rng_state": preserve} if recomputed else None)
    assert found["use_cache"] is False


#: From the config file to the plugin's environment, as `accelerate launch` does it, and on to a wrapped model.
ACCELERATE = """
import json, os, sys
from types import SimpleNamespace
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_apply_ac
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from transformers import GPT2Config, GPT2LMHeadModel

arguments, *_ = _validate_launch_command(
    launch_command_parser().parse_args(["--config_file", sys.argv[1], "--num_machines", "1", "train.py"])
)
environment = prepare_multi_gpu_env(arguments)
os.environ.update({name: value for name, value in environment.items() if name.startswith("FSDP")})
plugin = FullyShardedDataParallelPlugin()
model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=16, n_head=2, vocab_size=32))
wrapped = {}
plugin.set_auto_wrap_policy(model)
if plugin.activation_checkpointing and plugin.fsdp_version == 2:
    fsdp2_apply_ac(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)), model)
    wrapped = {
        name: module.checkpoint_fn.keywords["preserve_rng_state"]
        for name, module in model.named_modules() if isinstance(module, CheckpointWrapper)
    }
print(json.dumps({
    "version": plugin.fsdp_version, "switch": plugin.activation_checkpointing, "wrapped": wrapped,
    "classes": list(plugin.transformer_cls_names_to_wrap), "offload": plugin.activation_checkpointing_offload,
    "processes": arguments.num_processes,
}))
"""


@needs("accelerate", "transformers")
@pytest.mark.parametrize("column, recomputes", [("none", False), ("block", True)])
def test_accelerate_wraps_the_blocks_of_the_policy(column: str, recomputes: bool, tmp_path: Path) -> None:
    found = judged(ACCELERATE, "accelerate", column, tmp_path, preserve=False)
    assert found == {
        "version": 2,
        "switch": recomputes,
        "wrapped": {f"transformer.h.{i}": False for i in range(NUM_BLOCKS)} if recomputes else {},
        "classes": ["GPT2Block"],
        "offload": False,
        "processes": 1,
    }


#: The plugin of the first FSDP asks for a device; its environment does not.
ACCELERATE_ENVIRONMENT = """
import json, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

arguments, *_ = _validate_launch_command(
    launch_command_parser().parse_args(["--config_file", sys.argv[1], "--num_machines", "1", "train.py"])
)
environment = prepare_multi_gpu_env(arguments)
names = ("FSDP_VERSION", "FSDP_ACTIVATION_CHECKPOINTING", "FSDP_TRANSFORMER_CLS_TO_WRAP")
print(json.dumps([environment[name] for name in names]))
"""


@needs("accelerate")
def test_accelerate_reads_the_first_fsdp_too(tmp_path: Path) -> None:
    found = judged(ACCELERATE_ENVIRONMENT, "accelerate", "block", tmp_path, version="fsdp1")
    assert found == ["1", "true", "GPT2Block"]


DEEPSPEED = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig

with open(sys.argv[1]) as file:
    json.load(file)  # as transformers reads it
config = DeepSpeedConfig(sys.argv[1])
print(json.dumps(
    [config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps]
))
"""


@needs("deepspeed")
def test_deepspeed_agrees_on_all_three_batch_keys_and_passes_over_the_header(tmp_path: Path) -> None:
    assert judged(DEEPSPEED, "deepspeed", "none", tmp_path) == [8, 2, 4]


AXOLOTL = """
import json, sys
import yaml
from axolotl.utils.schemas.config import AxolotlInputConfig

with open(sys.argv[1]) as file:
    data = yaml.safe_load(file)
config = AxolotlInputConfig(
    base_model="model", learning_rate=1e-4, datasets=[{"path": "data", "type": "alpaca"}], **data
)
print(json.dumps({name: getattr(config, name) for name in data}))
"""


@needs("axolotl", "accelerate")
@pytest.mark.parametrize(
    "column, arguments",
    [
        ("none", None),
        ("block", {"use_reentrant": False, "preserve_rng_state": True}),
        ("block%k first", {"use_reentrant": False, "preserve_rng_state": True, "every_n_layers": 3}),
    ],
)
def test_axolotls_schema_takes_every_key(column: str, arguments: dict[str, object] | None, tmp_path: Path) -> None:
    assert judged(AXOLOTL, "axolotl", column, tmp_path) == {
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "auto_find_batch_size": False,
        "gradient_checkpointing": arguments is not None,
        "gradient_checkpointing_kwargs": arguments,
        "selective_checkpointing": None,
        "activation_offloading": False,
        "layer_offloading": False,
    }


LLAMAFACTORY = """
import json, sys
import yaml
from dataclasses import fields
from llamafactory.hparams.model_args import ModelArguments
from llamafactory.hparams.training_args import TrainingArguments

with open(sys.argv[1]) as file:
    data = yaml.safe_load(file)
found = {}
for section, own in ((ModelArguments, {"model_name_or_path": "model"}), (TrainingArguments, {"output_dir": "out"})):
    known = {field.name for field in fields(section) if field.init}
    arguments = section(**own, **{name: value for name, value in data.items() if name in known})
    found |= {name: getattr(arguments, name) for name in data if name in known}
print(json.dumps(found))
"""


@needs("llamafactory", "omegaconf", "datasets", "transformers", "accelerate")
@pytest.mark.parametrize("column, recomputes", [("none", False), ("block", True)])
def test_llama_factorys_arguments_know_every_key(column: str, recomputes: bool, tmp_path: Path) -> None:
    assert judged(LLAMAFACTORY, "llamafactory", column, tmp_path) == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "auto_find_batch_size": False,
        "disable_gradient_checkpointing": not recomputes,
        "gradient_checkpointing": False,
        "use_reentrant_gc": False,
        "use_unsloth_gc": False,
    }


LLAMAFACTORY_V1 = """
import json, sys
import yaml
from llamafactory.v1.config.training_args import TrainingArguments

with open(sys.argv[1]) as file:
    data = yaml.safe_load(file)
arguments = TrainingArguments(**data)
print(json.dumps({name: getattr(arguments, name) for name in data}))
"""


@needs("llamafactory", "omegaconf", "datasets", "transformers", "accelerate")
def test_llama_factorys_new_trainer_knows_every_key(tmp_path: Path) -> None:
    assert judged(LLAMAFACTORY_V1, "llamafactory", "none", tmp_path, version="v1") == {
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "enable_activation_checkpointing": False,
    }
