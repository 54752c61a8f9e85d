"""policy.yaml, which training code reads: needs PyYAML and nothing else that must be installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from search_spaces.policy import BatchShape, PolicyError, RecomputePolicy, policy_from_dict, policy_to_dict
from search_spaces.strict_yaml import StrictYamlError, read_yaml
from search_spaces.whole_file import write_whole
from search_spaces.yaml_nodes import KeyPath
from search_spaces.yaml_text import dump_yaml


def load_policy(path: str | os.PathLike[str]) -> RecomputePolicy:
    """The policy in a file.

    Raises:
        PolicyError: The file cannot be read, is not plain YAML, or holds something other than a policy; the message
            names the file and, where there is one, the line.
    """
    try:
        document = read_yaml(path)
    except StrictYamlError as error:
        raise PolicyError(str(error)) from error
    try:
        return policy_from_dict(document.data)
    except PolicyError as error:
        line = document.line_of(_refused_entry(document.data))
        raise PolicyError(f"{os.fspath(path)}:{line}: {error}") from error


def _refused_entry(data: object) -> KeyPath:
    """Where the trouble starts: the first entry with which the beginning of the file is no policy any more."""
    for path, beginning in _beginnings(data):
        try:
            policy_from_dict(beginning)
        except PolicyError:
            return path
    return ()


def _beginnings(data: object) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """A plain policy that takes over one entry of the file after the other, with the path of the last one."""
    if not isinstance(data, dict):
        return
    policy = policy_to_dict(RecomputePolicy(BatchShape(1, 1, 1, 1)))
    for key, value in data.items():
        if key == "placement" and isinstance(value, list):
            policy[key] = []
            for index, item in enumerate(value):
                yield from _placement_beginnings(policy, item, index)
        else:
            policy[key] = value
            yield (key,), policy


def _placement_beginnings(policy: dict[str, Any], item: object, index: int) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    path: KeyPath = ("placement", index)
    if isinstance(item, dict) and isinstance(item.get("regions"), list):
        entry: dict[str, Any] = {**item, "regions": []}
        policy["placement"].append(entry)
        yield path, policy
        for number, region in enumerate(item["regions"]):
            entry["regions"].append(region)
            yield (*path, "regions", number), policy
    else:
        policy["placement"].append(item)
        yield path, policy


def policy_to_yaml(policy: RecomputePolicy) -> str:
    """The text of ``policy.yaml``, always the same for the same policy.

    Raises:
        ValueError: ``policy.measured`` holds something that plain YAML cannot say.
    """
    return dump_yaml(policy_to_dict(policy))


def dump_policy(policy: RecomputePolicy, path: str | os.PathLike[str]) -> None:
    """Writes ``policy.yaml``, whole or not at all.

    Raises:
        OSError: The file cannot be written.
        ValueError: ``policy.measured`` holds something that plain YAML cannot say.
    """
    write_whole(path, policy_to_yaml(policy))
