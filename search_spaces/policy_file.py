"""policy.yaml, which training code reads: needs PyYAML and nothing else that must be installed."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from typing import Any

from search_spaces.policy import BatchShape, PolicyError, RecomputePolicy, policy_to_dict
from search_spaces.policy_reader import policy_from_dict
from search_spaces.strict_yaml import StrictYamlError, read_yaml
from search_spaces.whole_file import write_whole
from search_spaces.yaml_nodes import KeyPath, YamlProblem
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
        entry, reason = _first_refusal(document.data, error)
        problem = YamlProblem(document.line_of(entry), f"{reason}; correct the file, or export the policy again")
        raise PolicyError(problem.located(os.fspath(path))) from error


def _first_refusal(data: object, refusal: PolicyError) -> tuple[KeyPath, PolicyError]:
    """The first entry with which the beginning of the file is no policy any more, and why.

    That an entry is absent is said by ``refusal``, which belongs to the file as a whole.
    """
    if not isinstance(data, dict):
        return (), refusal
    entries = list(_entries(data))
    count = bisect.bisect_left(range(1, len(entries) + 1), True, key=lambda n: _refusal(data, entries[:n]) is not None)
    found = _refusal(data, entries[: count + 1])
    return ((), refusal) if found is None else (entries[count], found)


def _entries(data: dict[str, Any]) -> Iterator[KeyPath]:
    for key, value in data.items():
        if key != "placement" or not isinstance(value, list):
            yield (key,)
            continue
        for index, item in enumerate(value):
            yield (key, index)
            if _has_regions(item):
                yield from ((key, index, "regions", number) for number in range(len(item["regions"])))


def _has_regions(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("regions"), list)


def _refusal(data: dict[str, Any], entries: list[KeyPath]) -> PolicyError | None:
    """Why a plain policy is none any more after it took over these entries of the file; None where it still is one."""
    policy = policy_to_dict(RecomputePolicy(BatchShape(1, 1, 1, 1)))
    for key, *rest in entries:
        match rest:
            case []:
                policy[str(key)] = data[str(key)]
            case [int(index)]:
                item = data["placement"][index]
                policy["placement"].append({**item, "regions": []} if _has_regions(item) else item)
            case [int(index), _, int(number)]:
                policy["placement"][index]["regions"].append(data["placement"][index]["regions"][number])
    try:
        policy_from_dict(policy)
    except PolicyError as error:
        return error
    return None


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
