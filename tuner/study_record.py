"""What a study keeps in its Optuna storage besides trials: its goal, so that a resume cannot change it unseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Sections of search.yaml that decide what is measured and what wins. All others may change between sessions.
_GOAL_SECTIONS = ("model", "batch", "optimizer", "memory_cap", "placement", "measurement")
_GOAL_RUNNER_KEYS = ("device", "data_parallel_degree", "strategy")


def goal_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved search file that a resumed study must share."""
    goal = {section: config[section] for section in _GOAL_SECTIONS}
    goal["runner"] = {key: config["runner"][key] for key in _GOAL_RUNNER_KEYS}
    return goal


def changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What differs between two goals, one ``key: before -> now`` each."""
    for key in dict.fromkeys((*before, *now)):
        name = f"{path}.{key}" if path else str(key)
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, name)
        elif old != new:
            yield f"{name}: {old!r} -> {new!r}"
