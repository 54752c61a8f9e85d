"""Every stack whose version has keys, with a policy set in a file of the user's that has some of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from exported_studies import context, policy

from tuner.export.base import ExportError
from tuner.export.into.edit_file import FileEdit, plan_edit
from tuner.export.registry import EXPORTERS

KEYED = [
    (name, version.name)
    for name, exporter in EXPORTERS.items()
    for version in exporter.versions
    if exporter.settings(policy("none"), context(exporter, version.name))
]


def planned(file: Path, target: str, version: str, column: str) -> FileEdit:
    exporter = EXPORTERS[target]
    return plan_edit(file, exporter, policy(column), context(exporter, version))


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize("target, version", KEYED)
def test_a_file_says_what_the_exporter_says(target: str, version: str, suffix: str, tmp_path: Path) -> None:
    exporter = EXPORTERS[target]
    column = "none" if target == "deepspeed" else "block"
    settings = exporter.settings(policy(column), context(exporter, version))
    first = next(iter(settings))
    before: dict[str, Any] = {
        first: {"own": 1} if isinstance(settings[first], dict) else "auto",
        "mine": [1, {"a": None}],
    }
    file = tmp_path / f"train{suffix}"
    file.write_text(json.dumps(before) if suffix == ".json" else yaml.safe_dump(before, sort_keys=False))
    edit = planned(file, target, version, column)
    after = json.loads(edit.after) if suffix == ".json" else yaml.safe_load(edit.after)
    assert after.pop("mine") == [1, {"a": None}]
    if isinstance(settings[first], dict):
        _own(after[first])
    assert after == settings
    file.write_bytes(edit.after)
    assert not planned(file, target, version, column).changes


def _own(mapping: dict[str, Any]) -> None:
    assert mapping.pop("own") == 1


@pytest.mark.parametrize(
    "target, version, name, text",
    [
        ("megatron", "0.16", "a.sh", "run --micro-batch-size 1 --pipeline-model-parallel-size 2\n"),
        ("megatron", "bridge", "a.yaml", "model:\n  pipeline_model_parallel_size: 2\n"),
        (
            "primus",
            "megatron",
            "a.yaml",
            "modules:\n  pre_trainer:\n    overrides:\n      pipeline_model_parallel_size: 4\n",
        ),
    ],
)
def test_counts_of_blocks_are_refused_where_a_pipeline_counts_anew(
    target: str, version: str, name: str, text: str, tmp_path: Path
) -> None:
    if name.endswith(".sh"):
        pytest.importorskip("tree_sitter_bash", reason="the extra recompute-tuner[shell] is not installed")
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(
        ExportError, match=r"pipeline_model_parallel_size to something else than 1, .*block\[0-4\] @2x4"
    ):
        planned(file, target, version, "block<n")
    assert planned(file, target, version, "block").changes
    file.write_text(text.replace("size: 2", "size: 1").replace("size: 4", "size: 1").replace("size 2", "size 1"))
    assert planned(file, target, version, "block<n").changes


def test_a_missing_line_break_at_the_end_is_said_in_the_difference(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("train: {micro_batch_size: 1}\nmodel: {}")
    assert planned(file, "megatron", "bridge", "none").diff()[-1].endswith("  (no line break at the end)")


@pytest.mark.parametrize("version", ["4.57", "5.0", "5.16"])
@pytest.mark.parametrize("column", ["block", "none"])
def test_arguments_that_a_transformers_version_does_not_know_are_taken_out(
    version: str, column: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "gradient_checkpointing: true\ngradient_checkpointing_kwargs:\n  offload: true\n  every_n_layers: 3\n"
    )
    after = yaml.safe_load(planned(file, "huggingface", version, column).after)
    wanted = EXPORTERS["huggingface"].settings(policy(column), context(EXPORTERS["huggingface"], version))
    assert after == wanted


@pytest.mark.parametrize("column, distance", [("block", None), ("block%k first", 3)])
def test_axolotls_distance_of_layers_stays_only_where_it_is_the_trials(
    column: str, distance: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("gradient_checkpointing: true\ngradient_checkpointing_kwargs: {every_n_layers: 2, offload: true}\n")
    after = yaml.safe_load(planned(file, "axolotl", "0.19", column).after)
    assert after["gradient_checkpointing_kwargs"].get("every_n_layers") == distance
    assert "offload" not in after["gradient_checkpointing_kwargs"]


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.yaml", "x: " + "[" * 3000 + "]" * 3000 + "\n"),
        ("a.json", '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        ("a.json", '{"x": ' * 3000 + "1" + "}" * 3000),
        ("a.toml", "x = " + "[" * 3000 + "]" * 3000 + "\n"),
        ("a.toml", "x" + ".x" * 3000 + " = 1\n"),
    ],
    ids=["yaml", "json lists", "json", "toml lists", "toml"],
)
def test_what_is_nested_too_deeply_is_refused_in_one_line(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ExportError, match="nested too deeply") as caught:
        planned(file, *(KEYED[0] if name != "a.toml" else ("torchtitan", "0.2.2")), "block")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, target, text",
    [
        ("a.json", "huggingface", '{"gradient_checkpointing": false}'),
        ("a.toml", "torchtitan", "[training]\nlocal_batch_size = 64\n"),
    ],
)
def test_a_byte_order_mark_stays(name: str, target: str, text: str, tmp_path: Path) -> None:
    version = next(version for known, version in KEYED if known == target)
    file = tmp_path / name
    file.write_bytes(text.encode())
    plain = planned(file, target, version, "block").after
    file.write_bytes(text.encode("utf-8-sig"))
    assert planned(file, target, version, "block").after == b"\xef\xbb\xbf" + plain
