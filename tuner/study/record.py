"""What a study keeps in its Optuna storage besides trials: its goal, so that a resume cannot change it unseen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from runners.trial import ModelInspection
from tuner.config import SearchConfig
from tuner.results import KeepSetRecord, ModelRecord, StudyResults
from tuner.results_ledger import model_record
from tuner.search_file.load import resolved_yaml

#: Sections of search.yaml that decide what is measured and what wins. All others may change between sessions.
_GOAL_SECTIONS = ("model", "batch", "optimizer", "memory_cap", "placement", "measurement")
_GOAL_RUNNER_KEYS = ("device", "data_parallel_degree", "strategy")
_GOAL_KEYS_OF_STRATEGY = {"fsdp2": ("reshard_after_forward",), "pipeline": ("pipeline_stages",)}


def search_data(config: SearchConfig) -> dict[str, Any]:
    """The resolved search file as JSON data without credentials; numbers that JSON lacks as YAML writes them."""
    data: dict[str, Any] = _json_data(yaml.safe_load(resolved_yaml(config, credentials="hidden")))
    return data


def goal_of(search: Mapping[str, Any], inspection: ModelInspection) -> dict[str, Any]:
    """What a resumed study must share: part of the resolved search file, and what the file led to.

    The same file can mean another model once its code was edited, and another device once the study was moved.
    """
    return _goal(search, inspection.environment, model_record(inspection))


def goal_of_results(results: StudyResults) -> dict[str, Any]:
    """The goal of the study that left these results."""
    return _goal(results.search, results.environment, results.model)


def keep_sets_of(goal: Mapping[str, Any]) -> dict[str, list[KeepSetRecord]]:
    """The keep-sets of each list of blocks that a goal was made with, by the list's path."""
    return {
        path: [KeepSetRecord.model_validate(each) for each in blocks.get("keep_sets", ())]
        for path, blocks in goal["found"]["blocks"].items()
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What differs between two goals, one ``key: before -> now`` each."""
    for key in dict.fromkeys((*before, *now)):
        name = f"{path}.{key}" if path else str(key)
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, name)
        elif old != new:
            yield f"{name}: {old!r} -> {new!r}"


def _goal(search: Mapping[str, Any], environment: Mapping[str, Any], model: ModelRecord) -> dict[str, Any]:
    goal = {section: search.get(section) for section in _GOAL_SECTIONS}
    runner = search.get("runner", {})
    keys = (*_GOAL_RUNNER_KEYS, *_GOAL_KEYS_OF_STRATEGY.get(str(runner.get("strategy")), ()))
    goal["runner"] = {key: runner.get(key) for key in keys}
    goal["found"] = _found(environment, model)
    return goal


def _found(environment: Mapping[str, Any], model: ModelRecord) -> dict[str, Any]:
    found = {name: environment.get(name) for name in ("device_kind", "torch")}
    if found["device_kind"] == "cpu":
        # Nodes with accelerators may differ in their processors within one cluster; a CPU trial lives on them.
        found["num_threads"] = environment.get("num_threads")
    return {
        **found,
        "num_parameters": model.num_parameters,
        "blocks": {
            blocks.path: {
                "kind": blocks.kind,
                "num_blocks": blocks.num_blocks,
                "units": blocks.units,
                "aliases": blocks.aliases,
                "segments": blocks.segment_refusal or "possible",
                **({"keep_sets": [each.model_dump() for each in blocks.keep_sets]} if blocks.keep_sets else {}),
            }
            for blocks in model.block_lists
        },
    }


def _json_data(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _json_data(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_json_data(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return ".nan" if math.isnan(data) else f"{'-' if data < 0 else ''}.inf"
    return data
