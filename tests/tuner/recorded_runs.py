"""What MLflow holds of a study."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run


def recorded_runs(database: Path) -> dict[str, Run]:
    """Every run of the store by the number of its trial; the study's own is called study."""
    client = MlflowClient(f"sqlite:///{database}")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    named = [(run.data.tags.get("trial_number", "study"), run) for run in found]
    assert len({name for name, _ in named}) == len(named), "a trial has two runs"
    return dict(named)
