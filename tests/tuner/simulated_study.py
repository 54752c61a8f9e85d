"""The simulated study of these tests: where it lies, what it left, and a driver of its own process that runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import simulation
from mlflow import MlflowClient
from mlflow.entities import Run

from tuner.results import StudyResults
from tuner.results_file import read_results

WriteSearch = Callable[..., Path]
NUM_POLICIES = 8
EXHAUSTED = f"space exhausted: all {NUM_POLICIES} policies were tried"


def study_folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "simulated"


def stored_results(tmp_path: Path) -> StudyResults:
    return read_results(study_folder(tmp_path) / "results.json")


def mlflow_runs(tmp_path: Path, search: str = "") -> list[Run]:
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, search))


def num_measured(tmp_path: Path) -> dict[str, int]:
    """How often each policy was measured, by the study's own storage."""
    study = optuna.load_study(study_name="simulated", storage=f"sqlite:///{study_folder(tmp_path) / 'study.db'}")
    keys = [json.dumps(t.params) for t in study.trials if t.state is optuna.trial.TrialState.COMPLETE]
    return {key: keys.count(key) for key in keys}


def drive(file: Path, *options: str) -> subprocess.Popen[str]:
    """Another process that runs the study, as `tune run` does."""
    options = (*options, "run", str(file))
    script = Path(simulation.__file__)
    return subprocess.Popen(
        [sys.executable, script, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def running_driver(file: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver that is in the middle of trial 2."""
    driver = drive(file, "--wait-in", "2")
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "waiting\n"
        yield driver
    finally:
        driver.kill()
        driver.communicate()


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Whatever happens within, no file of the study changes but the lock."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in study_folder(folder).iterdir() if path.name != ".lock"}

    before = files()
    yield
    assert files() == before
