from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import simulation
from simulation import ENVIRONMENT, INSPECTION, SHAPE, write_search

from runners.trial import ModelInspection
from search_spaces.model_shape import BlockList, ModelShape
from tuner.search_file.load import load_search_file
from tuner.study.record import changes, goal_of, search_data


def search(folder: Path, **entries: Any) -> dict[str, Any]:
    return search_data(load_search_file(write_search(folder, **entries)))


def goal(folder: Path, *, inspection: ModelInspection = INSPECTION, **entries: Any) -> dict[str, Any]:
    """The goal as a store of JSON gives it back."""
    data: dict[str, Any] = json.loads(json.dumps(goal_of(search(folder, **entries), inspection), allow_nan=False))
    return data


def test_the_resolved_search_holds_defaults_and_what_was_written(tmp_path: Path) -> None:
    data = search(tmp_path)
    assert data["model"]["factory"] == "model.py:build"
    assert data["measurement"]["relative_spread"] == 0.02
    assert data["output_dir"] == str(tmp_path / "runs")


def test_numbers_that_json_lacks_are_written_as_in_yaml(tmp_path: Path) -> None:
    args = {"clip": float("inf"), "low": float("-inf"), "fill": float("nan"), "nested": [{"x": float("inf")}], "p": 0.5}
    data = search(tmp_path, model__args=args)
    expected = {"clip": ".inf", "low": "-.inf", "fill": ".nan", "nested": [{"x": ".inf"}], "p": 0.5}
    assert data["model"]["args"] == expected


def test_credentials_are_hidden(tmp_path: Path) -> None:
    data = search(tmp_path, storage="postgresql://user:s3cret@host/db", tracking={"uri": "http://user:s3cret@host"})
    assert "s3cret" not in json.dumps(data)


def test_the_same_search_has_the_same_goal(tmp_path: Path) -> None:
    args = {"fill": float("nan"), "sizes": [1, 2]}
    now = goal_of(search(tmp_path, model__args=args), INSPECTION)
    assert list(changes(goal(tmp_path, model__args=args), now)) == []


@pytest.mark.parametrize(
    "entries",
    [
        {"search__num_trials": 7},
        {"search__time_limit": "3h"},
        {"search__sampler": "tpe"},
        {"runner__trial_timeout": "3h"},
        {"runner__isolation": "process"},
        {"tracking__experiment": "another"},
    ],
    ids=lambda entries: next(iter(entries)),
)
def test_what_may_change_between_sessions(tmp_path: Path, entries: dict[str, Any]) -> None:
    assert list(changes(goal(tmp_path), goal(tmp_path, **entries))) == []


def test_changes_are_named_by_their_path(tmp_path: Path) -> None:
    before = goal(tmp_path, model__args={"depth": 2, "width": 8})
    now = goal(tmp_path, model__args={"depth": 3, "heads": 2}, memory_cap="1GiB")
    assert list(changes(before, now)) == [
        "model.args.depth: 2 -> 3",
        "model.args.width: 8 -> None",
        "model.args.heads: None -> 2",
        "memory_cap: '20MiB' -> '1GiB'",
    ]


def with_blocks(*lists: BlockList) -> ModelInspection:
    return INSPECTION.model_copy(update={"shape": ModelShape(SHAPE.num_parameters, lists)})


@pytest.mark.parametrize(
    "blocks, line",
    [
        (BlockList("h", "Block", 3, simulation.UNITS), "found.blocks.h.num_blocks: 2 -> 3"),
        (BlockList("h", "Other", 2, simulation.UNITS), "found.blocks.h.kind: 'Block' -> 'Other'"),
        (BlockList("h", "Block", 2, (("attention", "attn"),)), "found.blocks.h.units.mlp: 'mlp' -> None"),
        (BlockList("h", "Block", 2, simulation.UNITS, ((0, 1),)), "found.blocks.h.aliases: [] -> [[0, 1]]"),
        (
            BlockList("h", "Block", 2, simulation.UNITS, segment_refusal="a skip"),
            "found.blocks.h.segments: 'possible' -> 'a skip'",
        ),
    ],
    ids=["num_blocks", "kind", "units", "aliases", "segments"],
)
def test_edited_model_code_is_a_change(tmp_path: Path, blocks: BlockList, line: str) -> None:
    assert list(changes(goal(tmp_path), goal(tmp_path, inspection=with_blocks(blocks)))) == [line]


def test_a_list_that_is_gone_is_a_change(tmp_path: Path) -> None:
    (line,) = changes(goal(tmp_path), goal(tmp_path, inspection=with_blocks()))
    assert line.startswith("found.blocks.h: {'kind': 'Block'")


def test_threads_of_the_processor_count_only_where_trials_run_on_it(tmp_path: Path) -> None:
    def on(kind: str, num_threads: int) -> dict[str, Any]:
        environment = {**ENVIRONMENT, "device_kind": kind, "num_threads": num_threads}
        return goal(tmp_path, inspection=INSPECTION.model_copy(update={"environment": environment}))

    assert list(changes(on("cpu", 2), on("cpu", 4))) == ["found.num_threads: 2 -> 4"]
    assert list(changes(on("cuda", 2), on("cuda", 4))) == []
