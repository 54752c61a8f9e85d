"""Ctrl-C and SIGTERM in the middle of a real search: the program, its Ray cluster and all stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import optuna
import psutil
import pytest
from mlflow import MlflowClient
from optuna.trial import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

SEARCH = """
study: tiny
model:
  factory: runners.workloads.gpt:gpt
  args: {n_layer: 2, n_embd: 32, n_head: 2, vocab_size: 64}
batch: {global_batch_size: 4, sequence_length: 64}
memory_cap: 1GiB
placement: {actions: [none, mlp, block]}
search: {num_trials: 4, time_limit: 10m, sampler: random}
measurement: {warmup_steps: 1, min_steps: 3, max_steps: 3}
"""
ROOT = Path(__file__).resolve().parents[3]


def begin(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The program as a terminal runs it: in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", "run", "search.yaml", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_trial(process: subprocess.Popen[str], number: int) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.split()[:2] == ["trial", str(number)]:
            return
    raise AssertionError(f"the search ended before trial {number}: {''.join(said)}")


def still_running(processes: Sequence[psutil.Process], *, patience_s: float) -> list[psutil.Process]:
    deadline = time.monotonic() + patience_s
    while any(process.is_running() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [process for process in processes if process.is_running()]


def states(folder: Path) -> list[TrialState]:
    study = optuna.load_study(study_name="tiny", storage=f"sqlite:///{folder}/runs/tiny/study.db")
    return [trial.state for trial in study.trials]


def mlflow_statuses(folder: Path) -> dict[str, str]:
    """How each run of MLflow stands, by the number of its trial; the study's own is called study."""
    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return {run.data.tags.get("trial_number", "study"): run.info.status for run in runs}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_search_leaves_nothing_running_and_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    process = begin(tmp_path)
    try:
        wait_for_trial(process, 0)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "Ray and the workers have processes of their own"
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal tells the whole group
        else:
            process.send_signal(number)
        said, logged = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, logged
    assert "Traceback" not in logged
    assert "Stopped: interrupted by the user.\nWhat was measured is kept; continue with --resume.\n" in said
    assert still_running(children, patience_s=10) == []
    results = json.loads((tmp_path / "runs" / "tiny" / "results.json").read_text())
    assert results["status"] == "interrupted"
    assert results["trials"][0]["status"] == "COMPLETED"
    assert TrialState.RUNNING not in states(tmp_path)
    assert mlflow_statuses(tmp_path)["study"] == "KILLED"
    assert "RUNNING" not in mlflow_statuses(tmp_path).values()

    resumed = begin(tmp_path, "--resume")
    said, logged = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, logged
    assert "Stopped: all 4 trials were run." in said
    results = json.loads((tmp_path / "runs" / "tiny" / "results.json").read_text())
    measured = [trial["policy_key"] for trial in results["trials"] if trial["status"] == "COMPLETED"]
    assert len(measured) == len(set(measured)) == 4, "nothing is measured twice"
    assert set(mlflow_statuses(tmp_path).values()) <= {"FINISHED", "KILLED"}
    assert mlflow_statuses(tmp_path)["study"] == "FINISHED"
