"""Tables come from outside: what is wrong with one is said in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from recorded_table import RecordedTable
from table_file import TableError, read_table

from runners.trial import TrialStatus
from search_spaces.policy_reader import policy_from_dict

MIB = 2**20


def policy(action: str | None, micro_batch_size: int) -> dict[str, Any]:
    """Written by hand: no units, and lists that recompute nothing left out."""
    regions = [] if action is None else [{"first": 0, "last": 1, "action": action}]
    placement = [] if action is None else [{"blocks": "h", "num_blocks": 2, "regions": regions}]
    batch = {
        "micro_batch_size": micro_batch_size,
        "gradient_accumulation_steps": 2 // micro_batch_size,
        "data_parallel_degree": 1,
        "global_batch_size": 2,
    }
    return {"schema_version": 1, "batch": batch, "placement": placement}


def short_table() -> dict[str, Any]:
    """Two of the eight policies of two blocks that are recomputed whole or not."""
    return {
        "memory_cap_bytes": 20 * MIB,
        "global_batch_size": 2,
        "actions": ["none", "block"],
        "block_lists": [{"path": "h", "num_blocks": 2}],
        "rows": [
            {"policy": policy(None, 2), "step_time_s": 1.0, "peak_memory_bytes": 26 * MIB},
            {"policy": policy("block", 2), "step_time_s": 1.3, "peak_memory_bytes": 12 * MIB},
        ],
    }


def write(folder: Path, data: object, name: str = "table.json") -> Path:
    file = folder / name
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


def test_short_format_is_filled_in_from_its_rows(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, short_table()))
    assert table.name == "table"
    assert table.choices.micro_batch_sizes == (2,)
    assert [(p.summary(), row.step_time_s) for p, row in table.rows.items()] == [
        ("none @2x1", 1.0),
        ("block @2x1", 1.3),
    ]


def test_own_cap_is_replaced_by_the_given_one(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, short_table()), cap_bytes=13 * MIB).cap_bytes == 13 * MIB


def test_results_of_a_study_are_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "gpt").mkdir()
    assert read_table(write(tmp_path / "gpt", short_table(), "results.json")).name == "gpt"


def test_trial_that_was_cancelled_and_tried_anew_is_the_one_that_completed(tmp_path: Path) -> None:
    data = short_table()
    cancelled = {"policy": policy("block", 2), "status": "CANCELLED", "reason": "interrupted"}
    failed = {"policy": policy("block", 2), "status": "FAILED", "reason": "no block"}
    data["rows"] = [cancelled, *data["rows"], failed]
    table = read_table(write(tmp_path, data))
    assert [row.status for row in table.rows.values()] == [TrialStatus.COMPLETED] * 2


def changed(path: str, value: object) -> dict[str, Any]:
    """The short table with one entry replaced, or removed where the value is None."""
    data = short_table()
    *parents, last = path.split(".")
    entry: Any = data
    for parent in parents:
        entry = entry[int(parent)] if parent.isdigit() else entry[parent]
    if value is None:
        del entry[last]
    else:
        entry[last] = value
    return data


BAD = [
    pytest.param("{\n 'a': 1}", r"line 2 is no JSON", id="no JSON"),
    pytest.param([1], r"holds a list; allowed are a study's results.json .*name one of these", id="a list"),
    pytest.param({"figure": 1}, r"holds a mapping of figure; allowed are", id="another file"),
    pytest.param(changed("rows", []), r"rows is \[\]; allowed: List should have at least 1 item", id="no rows"),
    pytest.param(changed("actions", None), r"actions is missing; allowed: Field required; correct", id="no actions"),
    pytest.param(changed("actions", ["offload+mlp"]), r"joins 'offload'.*; correct", id="action"),
    pytest.param(changed("rows.1.step_time_s", -1), r"rows\[1\].step_time_s is -1; allowed: .*greater", id="time"),
    pytest.param(changed("rows.1.step_time_s", None), r"step_time_s of row 1 is missing; allowed", id="no time"),
    pytest.param(changed("rows.0.peak_memory_bytes", None), r"peak_memory_bytes of row 0 is missing", id="no peak"),
    pytest.param(changed("rows.0.status", "DONE"), r"rows\[0\].status is \"DONE\"; allowed: .*COMPLETED", id="status"),
    pytest.param(changed("rows.1.policy.batch", 3), r"policy of row 1: batch is .*; correct the file", id="no policy"),
    pytest.param(changed("rows.1.policy", policy("mlp", 2)), r"policy of row 1.*unit 'mlp'", id="unknown unit"),
    pytest.param(changed("rows.1.policy", policy("block", 1)), None, id="another micro-batch is fine"),
    pytest.param({**short_table(), "micro_batch_sizes": [1]}, r"row 0 is none of this search: micro_batch", id="size"),
    pytest.param({"trials": [], "memory_cap_bytes": 1}, r"search is missing", id="not the results of a study"),
]


@pytest.mark.parametrize(("data", "message"), BAD)
def test_bad_table_is_refused_in_one_line(tmp_path: Path, data: object, message: str | None) -> None:
    file = write(tmp_path, data)
    if message is None:
        assert len(read_table(file).rows) == 2
        return
    with pytest.raises(TableError, match=message) as caught:
        read_table(file)
    assert str(caught.value).startswith(str(file))
    assert len(caught.value.lines) == 1
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"none\.json does not exist; name a study's results\.json"):
        read_table(tmp_path / "none.json")


def test_nothing_within_the_cap_is_refused(tmp_path: Path) -> None:
    message = re.escape(f"no row has a step time and a peak within it (the least one is {12 * MIB}); give a larger cap")
    table = read_table(write(tmp_path, short_table()), cap_bytes=MIB)
    with pytest.raises(TableError, match=message):
        RecordedTable(table)


def test_missing_baseline_is_refused(tmp_path: Path) -> None:
    data = short_table()
    del data["rows"][0]
    table = read_table(write(tmp_path, data))
    with pytest.raises(TableError, match=r"the row of the baseline \(none @2x1\) is missing or FAILED"):
        RecordedTable(table)


def test_policies_stay_what_they_were(tmp_path: Path) -> None:
    data = short_table()
    table = read_table(write(tmp_path, data))
    assert [p.key for p in table.rows] == [policy_from_dict(row["policy"]).key for row in data["rows"]]
