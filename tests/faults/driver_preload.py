"""What a driver loads, loaded once: a process that has imported this is where drivers are forked from."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tuner"))

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  # what a tracking store loads when it is opened
import optuna.storages  # noqa: F401
import plotly.graph_objects  # noqa: F401
import simulation
from mlflow import MlflowClient  # noqa: F401

from runners.trial import TrialResult, TrialSpec
from tuner import assemble, cli
from tuner.commands import run  # noqa: F401


def run_tune(trial_s: float) -> None:
    """The program, on a simulated device; arguments are those of the process."""

    def outcome(spec: TrialSpec) -> TrialResult:
        time.sleep(trial_s)
        return simulation.measure(spec)

    assemble.ray_runner = lambda config: simulation.replay(outcome)  # type: ignore[assignment,return-value]
    logging.getLogger().handlers.clear()
    cli.main()
