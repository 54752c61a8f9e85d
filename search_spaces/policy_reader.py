"""Reads a policy from plain data, strictly."""

from __future__ import annotations

from typing import Any

from search_spaces.actions import SELECTIVE, selective_action
from search_spaces.policy import (
    COMPILE_MODES,
    SCHEMA_VERSION,
    BatchShape,
    BlockListPlacement,
    PolicyError,
    RecomputePolicy,
    Region,
    check_keep,
)


def policy_from_dict(data: object) -> RecomputePolicy:
    """Reads the plain data of ``policy.yaml`` strictly: unknown, missing and wrong entries are refused by name.

    Raises:
        PolicyError: Anything that is not exactly a policy of this schema version.
    """
    root = _mapping(
        data,
        "policy",
        required=("schema_version", "batch", "placement"),
        optional=("preserve_rng_state", "compile", "reshard_after_forward", "compile_memory_budget", "measured"),
    )
    if root["schema_version"] != SCHEMA_VERSION or isinstance(root["schema_version"], bool):
        raise PolicyError(f"schema_version is {root['schema_version']!r}; this release reads version {SCHEMA_VERSION}")
    batch = _mapping(
        root["batch"],
        "batch",
        required=("micro_batch_size", "gradient_accumulation_steps", "data_parallel_degree", "global_batch_size"),
    )
    preserve = root.get("preserve_rng_state", True)
    if not isinstance(preserve, bool):
        raise PolicyError(f"preserve_rng_state is {preserve!r}; true or false is allowed")
    compiled = root.get("compile")
    if compiled is not None and not isinstance(compiled, str):
        raise PolicyError(f"compile is {compiled!r}; {' or '.join(COMPILE_MODES)} is allowed, or leave it out")
    reshard = root.get("reshard_after_forward")
    if reshard is not None and not isinstance(reshard, bool):
        raise PolicyError(f"reshard_after_forward is {reshard!r}; true or false is allowed")
    measured = root.get("measured")
    if measured is not None and not isinstance(measured, dict):
        raise PolicyError(f"measured is {_kind(measured)}; a mapping is allowed")
    placement = tuple(
        _placement_from_dict(item, f"placement[{index}]")
        for index, item in enumerate(_sequence(root["placement"], "placement"))
    )
    budget = root.get("compile_memory_budget")
    return RecomputePolicy(BatchShape(**batch), placement, preserve, measured, compiled, reshard, budget)


def _placement_from_dict(data: object, where: str) -> BlockListPlacement:
    entry = _mapping(data, where, required=("blocks", "num_blocks", "regions"), optional=("units",))
    units = entry.get("units", {})
    if not isinstance(units, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in units.items()):
        raise PolicyError(f"{where}.units is {units!r}; a mapping of unit name to module path is allowed")
    regions = tuple(
        _region_from_dict(item, f"{where}.regions[{index}]")
        for index, item in enumerate(_sequence(entry["regions"], f"{where}.regions"))
    )
    return BlockListPlacement(
        _text(entry["blocks"], f"{where}.blocks"),
        _whole_number(entry["num_blocks"], f"{where}.num_blocks", minimum=1),
        tuple(units.items()),
        regions,
    )


def _region_from_dict(data: object, where: str) -> Region:
    entry = _mapping(data, where, required=("first", "last", "action"), optional=("segment_size", "keep"))
    action = _text(entry["action"], f"{where}.action")
    if ("keep" in entry) != (action == SELECTIVE):
        raise PolicyError(f"{where}: keep goes with action {SELECTIVE} and with no other, and that one needs it")
    if action == SELECTIVE:
        keep = [_text(item, f"{where}.keep[{i}]") for i, item in enumerate(_sequence(entry["keep"], f"{where}.keep"))]
        check_keep(tuple(keep), where)
        action = selective_action(keep)
    size = entry.get("segment_size")
    return Region(
        _whole_number(entry["first"], f"{where}.first", minimum=0),
        _whole_number(entry["last"], f"{where}.last", minimum=0),
        action,
        None if size is None else _whole_number(size, f"{where}.segment_size", minimum=1),
    )


def _mapping(data: object, where: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise PolicyError(f"{where} is {_kind(data)}; a mapping with {', '.join(required)} is expected")
    missing = [name for name in required if name not in data]
    if missing:
        raise PolicyError(f"{where} has no {missing[0]}; it needs {', '.join(required)}")
    unknown = [name for name in data if name not in (*required, *optional)]
    if unknown:
        raise PolicyError(f"{where} has unknown entry {unknown[0]!r}; known are {', '.join((*required, *optional))}")
    return data


def _sequence(data: object, where: str) -> list[object]:
    if not isinstance(data, list):
        raise PolicyError(f"{where} is {_kind(data)}; a list is expected")
    return data


def _text(data: object, where: str) -> str:
    if not isinstance(data, str) or not data:
        raise PolicyError(f"{where} is {data!r}; text is expected")
    return data


def _whole_number(data: object, where: str, *, minimum: int) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or data < minimum:
        raise PolicyError(f"{where} is {data!r}; a whole number of at least {minimum} is allowed")
    return data


def _kind(data: object) -> str:
    names: dict[type, str] = {dict: "a mapping", list: "a list", str: "text", type(None): "empty"}
    return names.get(type(data)) or repr(data)
