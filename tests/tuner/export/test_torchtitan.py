"""What torchtitan's config says, by the rules of its own sources, and by its own config code where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from exported_studies import NUM_BLOCKS, context, measured, policy, record, study_of

from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.export.base import Refusal
from tuner.export.check import check
from tuner.export.export_trial import export_trial
from tuner.export.registry import EXPORTERS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TITAN = EXPORTERS["torchtitan"]
IN_TOML = ("0.2.2", "0.2.0", "0.1")
#: Keys of the section ``activation_checkpoint`` that each release has; others stop it at start-up.
KEYS = {
    "0.2.2": {"mode", "selective_ac_option", "early_stop", "preserve_rng_state", "determinism_check", "debug"},
    "0.2.0": {"mode", "selective_ac_option", "early_stop"},
    "0.1": {"mode", "selective_ac_option"},
}


def exported(wanted: RecomputePolicy, version: str) -> str:
    study = study_of(measured(0, wanted))
    return export_trial(TITAN, study, record(study), context(TITAN, version))


def wrapped_blocks(section: dict[str, Any], num_blocks: int) -> list[int]:
    """By the rule of torchtitan up to 0.2.2: it counts blocks from 1 and takes multiples of the option, 0 all."""
    if section["mode"] == "none":
        return []
    every = int(section["selective_ac_option"]) if section["mode"] == "selective" else 0
    return [index for index in range(num_blocks) if not every or (index + 1) % every == 0]


@pytest.mark.parametrize("version", IN_TOML)
@pytest.mark.parametrize("distance", range(1, NUM_BLOCKS + 2))
def test_every_kth_block_counts_from_the_kth(version: str, distance: int) -> None:
    chosen = list(range(distance - 1, NUM_BLOCKS, distance))
    placement = BlockListPlacement("transformer.h", NUM_BLOCKS, (), tuple(Region(i, i, "block") for i in chosen))
    wanted = RecomputePolicy(
        BatchShape.split(global_batch_size=8, micro_batch_size=2), (placement,), version == "0.2.2"
    )
    data = tomllib.loads(exported(wanted.canonical(), version))
    assert data["training"] == {"local_batch_size": 2, "global_batch_size": 8}
    assert data["activation_checkpoint"].keys() <= KEYS[version]
    assert wrapped_blocks(data["activation_checkpoint"], NUM_BLOCKS) == chosen


@pytest.mark.parametrize("preserve", [True, False])
def test_rng_handling_is_always_written_where_a_key_takes_it(preserve: bool) -> None:
    section = tomllib.loads(exported(policy("block", preserve_rng_state=preserve), "0.2.2"))["activation_checkpoint"]
    assert section["preserve_rng_state"] is preserve
    assert f"preserve_rng_state={preserve}" in exported(policy("block", preserve_rng_state=preserve), "0.3")


@pytest.mark.parametrize("version", ["0.2.0", "0.1"])
def test_releases_that_never_keep_rng_state_say_so(version: str) -> None:
    refusal = check(TITAN, policy("block"), context(TITAN, version))
    assert refusal == Refusal(
        "preserve_rng_state is true",
        "false only: it never keeps RNG state",
        "search with placement.preserve_rng_state: false",
    )
    assert check(TITAN, policy("none"), context(TITAN, version)) is None


def test_batches_in_tokens_are_samples_times_their_length() -> None:
    text = exported(policy("block"), "tokens")
    assert "config.training.num_tokens_per_microbatch_per_dp_rank = 256\n" in text
    assert "config.training.num_tokens_per_train_step = 1024\n" in text
    assert "config.training.max_context_length = 128\n" in text


@pytest.mark.parametrize(
    "version, through_python", [("0.3", False), ("0.3", True), ("tokens", False), ("tokens", True)]
)
def test_python_exports_compile(version: str, through_python: bool) -> None:
    wanted = policy("mix" if through_python else "block")
    study = study_of(measured(0, wanted))
    text = export_trial(TITAN, study, record(study), context(TITAN, version, through_python=through_python))
    assert "with_measured_policy" in compile(text, "exported.py", "exec").co_names


#: Reads the file as a training script of torchtitan 0.2 does, and lets its own code wrap the blocks of a model.
PROGRAM = """
import json, sys
from torch import nn
from torchtitan.config import ConfigManager
from torchtitan.distributed.activation_checkpoint import apply_ac

config = ConfigManager().parse_args(["--job.config_file", sys.argv[1]])
model = nn.Module()
model.layers = nn.ModuleDict({str(i): nn.Linear(2, 2) for i in range(12)})
if config.activation_checkpoint.mode != "none":
    apply_ac(model, config.activation_checkpoint)
print(json.dumps([
    config.training.local_batch_size,
    config.training.global_batch_size,
    [int(name) for name, block in model.layers.items() if not isinstance(block, nn.Linear)],
]))
"""


def _release() -> str:
    try:
        return metadata.version("torchtitan")
    except metadata.PackageNotFoundError:
        return "none"


@pytest.mark.slow
@pytest.mark.skipif(not _release().startswith("0.2."), reason=f"torchtitan 0.2 is not installed, {_release()} is")
@pytest.mark.parametrize("column, blocks", [("none", []), ("block", list(range(12))), ("block%k last", [2, 5, 8, 11])])
def test_its_own_code_wraps_the_blocks_of_the_policy(column: str, blocks: list[int], tmp_path: Path) -> None:
    version = "0.2.0" if _release() == "0.2.0" else "0.2.2"
    file = tmp_path / "train.toml"
    file.write_text(exported(policy(column, preserve_rng_state=version == "0.2.2"), version))
    ended = subprocess.run([sys.executable, "-c", PROGRAM, file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [2, 8, blocks]
