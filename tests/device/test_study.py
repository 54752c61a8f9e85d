"""A whole study on an accelerator: peaks, predictions and winner as `tune run` gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SEARCH: dict[str, Any] = {
    "study": "device",
    "model": {
        "factory": "runners.workloads.gpt:gpt",
        "args": {"n_layer": 8, "n_embd": 512, "n_head": 8, "vocab_size": 4096, "max_sequence_length": 512},
        "autocast": "bfloat16",
    },
    "batch": {"global_batch_size": 16, "sequence_length": 512},
    "search": {"num_trials": 8, "time_limit": "2m"},
    "runner": {"trial_timeout": "2m"},
    "memory_cap": "4GiB",
}
#: For a stand-in that computes on the host.
SMALL: dict[str, Any] = {
    **SEARCH,
    "model": {
        "factory": "runners.workloads.gpt:gpt",
        "args": {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 64, "max_sequence_length": 32},
    },
    "batch": {"global_batch_size": 8, "micro_batch_sizes": [4, 8], "sequence_length": 32},
    "search": {"num_trials": 4},
    "measurement": {"min_steps": 2, "max_steps": 3},
    "memory_cap": "3MiB",
}


@pytest.mark.parametrize(
    "mark", [pytest.param(mark, marks=getattr(pytest.mark, mark)) for mark in ("cuda", "npu", "accelerator")]
)
@pytest.mark.timeout(320)
def test_study_finds_a_proven_policy(
    device_kind: str, is_stand_in: bool, mark: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump({**(SMALL if is_stand_in else SEARCH), "output_dir": str(tmp_path / "runs")}))
    command = [sys.executable, "-m", "tuner", "run", str(file), "--json"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout)
    assert results["environment"]["device_kind"] == device_kind
    trials = results["trials"]
    record_property("statuses", [trial["status"] for trial in trials])
    completed = [trial for trial in trials if trial["status"] == "COMPLETED"]
    assert completed
    assert {trial["verification"]["verdict"] for trial in completed} == {"MATCH"}
    for trial in completed:
        assert trial["peak_memory_bytes"] == trial["peak_reserved_bytes"] >= trial["peak_allocated_bytes"] > 0
    assert results["best"] is not None
    predicted = [trial for trial in completed if trial["predicted_peak_memory_bytes"] is not None]
    errors = [trial["predicted_peak_memory_bytes"] / trial["peak_allocated_bytes"] - 1 for trial in predicted]
    record_property("predicted_peak_relative_errors", [round(error, 4) for error in errors])
    best = next(trial for trial in completed if trial["is_best"])
    record_property("best", best["policy_summary"])
    record_property("tokens_per_second", {trial["policy_summary"]: trial["tokens_per_second"] for trial in completed})
