"""Ctrl-C in the middle of a plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SEARCH = """
model: {factory: "runners.workloads.gpt:gpt", args: {n_layer: 48, n_embd: 64, n_head: 4, vocab_size: 256}}
batch: {global_batch_size: 64, sequence_length: 64}
memory_cap: 1GiB
"""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_plan_is_exit_code_130_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", "plan", "search.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_WAIT_POLICY": "passive"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("running steps"):
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "the dry run has a process of its own"
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "interrupted"
    deadline = time.monotonic() + 5
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [child for child in children if child.is_running()] == []
