from __future__ import annotations

from typing import Any

import pytest

from search_spaces.policy import PolicyError
from search_spaces.policy_reader import policy_from_dict


def a_policy() -> dict[str, Any]:
    regions = [
        {"first": 0, "last": 5, "action": "segment", "segment_size": 3},
        {"first": 6, "last": 8, "action": "attention+mlp"},
    ]
    units = {"attention": "attn", "mlp": "mlp"}
    return {
        "schema_version": 1,
        "batch": {
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "data_parallel_degree": 1,
            "global_batch_size": 8,
        },
        "preserve_rng_state": True,
        "placement": [{"blocks": "transformer.h", "num_blocks": 12, "units": units, "regions": regions}],
    }


_REMOVED = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema_version"], 2, r"schema_version is 2; this release reads version 1"),
        (["schema_version"], True, r"schema_version is True"),
        (["schema_version"], "1", r"schema_version is '1'"),
        (["schema_version"], _REMOVED, r"policy has no schema_version; it needs schema_version, batch, placement"),
        (["batch"], _REMOVED, r"policy has no batch"),
        (["extra"], 1, r"policy has unknown entry 'extra'; known are schema_version, batch"),
        (["preserve_rng_state"], "true", r"preserve_rng_state is 'true'; true or false is allowed"),
        (["preserve_rng_state"], None, r"preserve_rng_state is None"),
        (["measured"], [1], r"measured is a list; a mapping is allowed"),
        (["batch"], [], r"batch is a list; a mapping with micro_batch_size"),
        (["batch", "micro_batch_size"], _REMOVED, r"batch has no micro_batch_size"),
        (["batch", "micro_batch_size"], "2", r"batch\.micro_batch_size is '2'; a whole number"),
        (["batch", "global_batch_size"], 9, r"batch\.global_batch_size is 9, but"),
        (["batch", "size"], 9, r"batch has unknown entry 'size'"),
        (["placement"], {}, r"placement is a mapping; a list is expected"),
        (["placement", 0], 3, r"placement\[0\] is 3; a mapping with blocks"),
        (["placement", 0, "blocks"], "", r"placement\[0\]\.blocks is ''; text is expected"),
        (["placement", 0, "blocks"], 5, r"placement\[0\]\.blocks is 5; text is expected"),
        (["placement", 0, "num_blocks"], 12.0, r"placement\[0\]\.num_blocks is 12\.0; a whole number of at least 1"),
        (["placement", 0, "num_blocks"], True, r"placement\[0\]\.num_blocks is True"),
        (["placement", 0, "units"], [], r"placement\[0\]\.units is \[\]; a mapping of unit name to module path"),
        (["placement", 0, "units"], None, r"placement\[0\]\.units is None"),
        (["placement", 0, "units", "mlp"], 1, r"placement\[0\]\.units is .*; a mapping of unit name"),
        (["placement", 0, "units", "mlp"], _REMOVED, r"region 6-8: action attention\+mlp names unit 'mlp'"),
        (["placement", 0, "regions"], None, r"placement\[0\]\.regions is empty; a list is expected"),
        (["placement", 0, "regions", 1], [], r"placement\[0\]\.regions\[1\] is a list; a mapping with first"),
        (["placement", 0, "regions", 1, "first"], "6", r"placement\[0\]\.regions\[1\]\.first is '6'; a whole number"),
        (["placement", 0, "regions", 1, "last"], 12, r"region 6-12 is out of order or outside the list"),
        (["placement", 0, "regions", 1, "action"], None, r"placement\[0\]\.regions\[1\]\.action is None; text"),
        (
            ["placement", 0, "regions", 1, "keep"],
            [],
            r"regions\[1\]: keep goes with action selective and with no other, and that one needs it",
        ),
        (["placement", 0, "regions", 1, "size"], 3, r"placement\[0\]\.regions\[1\] has unknown entry 'size'"),
        (["placement", 0, "regions", 0, "segment_size"], 1.5, r"regions\[0\]\.segment_size is 1\.5; a whole number"),
        (["placement", 0, "regions", 0, "segment_size"], _REMOVED, r"segment_size goes with action segment"),
    ],
)
def test_plain_data_that_is_no_policy_is_refused_by_name(path: list[str | int], value: Any, message: str) -> None:
    data = a_policy()
    entry: Any = data
    for part in path[:-1]:
        entry = entry[part]
    if value is _REMOVED:
        del entry[path[-1]]
    else:
        entry[path[-1]] = value
    with pytest.raises(PolicyError, match=message):
        policy_from_dict(data)


@pytest.mark.parametrize("data", [None, [], "policy", 3])
def test_only_a_mapping_is_a_policy(data: object) -> None:
    with pytest.raises(PolicyError, match=r"policy is .+; a mapping with schema_version"):
        policy_from_dict(data)


def test_absent_optional_entries_have_defaults() -> None:
    data = a_policy()
    del data["preserve_rng_state"]
    assert policy_from_dict(data).preserve_rng_state is True
    assert policy_from_dict(data).measured is None


# Summary
