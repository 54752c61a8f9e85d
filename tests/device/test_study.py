"""A whole study on an accelerator: peaks, predictions and winner as `tune run` gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

SEARCH = {
    "study": "device",
    "model": {
        "factory": "runners.workloads.gpt:gpt",
        "args": {"n_layer": 8, "n_embd": 512, "n_head": 8, "vocab_size": 4096, "max_sequence_length": 512},
        "autocast": "bfloat16",
    },
    "batch": {"global_batch_size": 16, "sequence_length": 512},
    "search": {"num_trials": 8, "time_limit": "3m"},
    "memory_cap": "4GiB",
}


def _run(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump({**SEARCH, "output_dir": str(tmp_path / "runs")}))
    command = [sys.executable, "-m", "tuner", "run", str(file), "--json"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout)
    completed = [trial for trial in results["trials"] if trial["status"] == "COMPLETED"]
    assert completed
    assert {trial["verification"]["verdict"] for trial in completed} == {"MATCH"}
    assert all(trial["peak_memory_bytes"] == trial["peak_reserved_bytes"] for trial in completed)
    assert results["best"] is not None
    errors = [trial["predicted_peak_memory_bytes"] / trial["peak_allocated_bytes"] - 1 for trial in completed]
    record_property("predicted_peak_relative_errors", [round(error, 4) for error in errors])
    best = next(trial for trial in completed if trial["is_best"])
    record_property("best", best["policy_summary"])
    record_property("tokens_per_second", {trial["policy_summary"]: trial["tokens_per_second"] for trial in completed})


@pytest.mark.cuda
def test_on_cuda(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    _run(tmp_path, record_property)


@pytest.mark.npu
def test_on_npu(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != "npu":
        pytest.skip("torch finds no NPU on this machine")
    _run(tmp_path, record_property)
