"""`tune export --into` as a user calls it: what is shown, what is written, what is kept."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from tuner.results import StudyResults

Tune = Callable[..., Result]
CONFIG = """# mine
base_model: x
micro_batch_size: 8  # per device
gradient_accumulation_steps: 1
gradient_checkpointing: false
"""
#: Trial 1 of the study recomputes both blocks whole at micro-batch 2.
TRIAL = ("--trial", 1)


@pytest.fixture
def export(tune: Tune, runs: Path, study: StudyResults) -> Callable[..., Result]:
    def run(file: Path, *options: object, format: str = "axolotl") -> Result:
        return tune("export", "simulated", "--format", format, "--output-dir", runs, "--into", file, *TRIAL, *options)

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "train.yaml"
    file.write_text(CONFIG)
    return file


def test_the_file_is_changed_the_old_one_kept_and_the_difference_shown(
    export: Callable[..., Result], config: Path
) -> None:
    config.chmod(0o750)
    result = export(config)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "micro_batch_size: 2  # per device\n" in config.read_text()
    assert "gradient_checkpointing: true\n" in config.read_text()
    assert config.with_name("train.yaml.bak").read_text() == CONFIG
    assert (
        stat.S_IMODE(config.stat().st_mode) == stat.S_IMODE(config.with_name("train.yaml.bak").stat().st_mode) == 0o750
    )
    lines = result.stderr.splitlines()
    assert lines[:2] == [f"--- {config}", f"+++ {config}"]
    assert "-micro_batch_size: 8  # per device" in lines
    assert "+micro_batch_size: 2  # per device" in lines
    assert f"trial 1 (block @2x1) set in {config}; the old file is {config}.bak" in lines


def test_a_dry_run_shows_the_same_and_writes_nothing(export: Callable[..., Result], config: Path) -> None:
    result = export(config, "--dry-run")
    assert result.exit_code == 0
    assert "+micro_batch_size: 2  # per device" in result.stderr.splitlines()
    assert "nothing was written" in result.stderr
    assert [config] == list(config.parent.glob("train*"))
    assert config.read_text() == CONFIG


def test_a_second_time_there_is_nothing_to_change(export: Callable[..., Result], config: Path) -> None:
    export(config)
    after = config.read_text()
    result = export(config)
    assert (result.exit_code, config.read_text()) == (0, after)
    assert result.stderr.startswith(f"{config} says trial 1 (block @2x1) already; nothing to change\n")
    assert len(list(config.parent.glob("train*"))) == 2


def test_no_kept_file_is_ever_overwritten(export: Callable[..., Result], config: Path) -> None:
    for name in ("train.yaml.bak", "train.yaml.bak.1"):
        config.with_name(name).write_text(name)
    assert export(config).exit_code == 0
    assert config.with_name("train.yaml.bak").read_text() == "train.yaml.bak"
    assert config.with_name("train.yaml.bak.1").read_text() == "train.yaml.bak.1"
    assert config.with_name("train.yaml.bak.2").read_text() == CONFIG


def test_a_link_stays_a_link_to_the_changed_file(export: Callable[..., Result], config: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "train.yaml"
    link.symlink_to(config)
    assert export(link).exit_code == 0
    assert link.is_symlink()
    assert "micro_batch_size: 2" in config.read_text()
    assert config.with_name("train.yaml.bak").read_text() == CONFIG
    assert os.listdir(tmp_path / "links") == ["train.yaml"]


def test_json_is_one_document_on_standard_output(export: Callable[..., Result], config: Path) -> None:
    result = export(config, "--json")
    document = json.loads(result.stdout)
    assert document["file"] == str(config)
    assert document["backup"] == f"{config}.bak"
    assert (document["changed"], document["dry_run"], document["section"]) == (True, False, None)
    assert (document["format"], document["trial"]) == ("axolotl", 1)
    assert "+micro_batch_size: 2  # per device" in document["diff"].splitlines()
    assert document["settings"]["micro_batch_size"] == 2


def test_colours_are_for_terminals_only(
    export: Callable[..., Result], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[" not in export(config, "--dry-run").stderr
    terminal = Console(stderr=True, force_terminal=True, color_system="standard", highlight=False)
    monkeypatch.setattr("tuner.commands.export_into.err_console", terminal)
    assert "\x1b[32m+micro_batch_size: 2" in export(config, "--dry-run").stderr


@pytest.mark.parametrize(
    "name, content, options, message",
    [
        ("train.yaml", "micro_batch_size: 1\nmicro_batch_size: 2\n", {}, "train.yaml:2: says micro_batch_size twice"),
        ("train.yaml", "x: 1\n", {}, "train.yaml: has none of the keys"),
        ("train.txt", CONFIG, {}, "train.txt; files that can be edited end in .yaml, .yml, .json, .toml, .sh"),
        ("train.sh", "run --micro_batch_size 1\n", {}, "train.sh, a shell script, but axolotl"),
        ("train.toml", "[training]\n", {"format": "torchtitan"}, "--stack-version 0.2.2 or 0.2.0 or 0.1 has keys"),
        ("train.yaml", CONFIG, {"format": "policy"}, "has no keys to set; export it with --output"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_and_left(
    export: Callable[..., Result], tmp_path: Path, name: str, content: str, options: dict[str, str], message: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    result = export(file, **options)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert message in line
    assert file.read_text() == content
    assert not list(tmp_path.glob("*.bak*"))


def test_what_is_no_text_cannot_be_edited(export: Callable[..., Result], config: Path) -> None:
    config.write_bytes(b"micro_batch_size: 1 # \xff\n")
    result = export(config)
    assert result.exit_code == 2
    assert result.stderr == f"--into is {config}, which is not UTF-8 text; save it as UTF-8\n"


def test_a_read_only_file_is_refused(export: Callable[..., Result], config: Path) -> None:
    config.chmod(0o444)
    result = export(config)
    assert result.exit_code == 2
    assert result.stderr == f"--into is {config}, which is read-only; make it writable or copy it\n"
    assert not config.with_name("train.yaml.bak").exists()


@pytest.mark.parametrize("name, reason", [("absent.yaml", "No such file or directory"), (".", "it is no file")])
def test_a_file_that_cannot_be_read(export: Callable[..., Result], tmp_path: Path, name: str, reason: str) -> None:
    result = export(tmp_path / name)
    assert result.exit_code == 2
    assert f"which cannot be read: {reason}; name a config or launch script" in result.stderr


def test_stages_of_a_pipeline_count_blocks_anew(tune: Tune, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra recompute-tuner[shell] is not installed")
    file = tmp_path / "train.sh"
    file.write_text("torchrun --micro-batch-size 1 --pipeline-model-parallel-size 4\n")
    result = tune("export", "simulated", "--format", "megatron", "--output-dir", runs, "--into", file, "--trial", 1)
    assert result.exit_code == 0
    assert "--recompute-method uniform --recompute-num-layers 1" in file.read_text()


def test_options_that_contradict_are_refused(
    export: Callable[..., Result], tune: Tune, runs: Path, config: Path
) -> None:
    both = export(config, "--output", config)
    assert (both.exit_code, both.stderr) == (2, f"--into is {config} and --output is {config}; name one of the two\n")
    alone = tune("export", "simulated", "--format", "axolotl", "--output-dir", runs, "--dry-run")
    assert (alone.exit_code, alone.stderr) == (
        2,
        "--dry-run goes with --into, which is not given; name the file to compare\n",
    )
