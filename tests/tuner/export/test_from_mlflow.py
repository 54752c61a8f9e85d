from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from click.testing import Result
from mlflow import MlflowClient


def test_what_mlflow_holds_of_a_study_is_enough_to_export_every_point_of_its_front(
    tmp_path: Path, write_search: Callable[..., Path], tune: Callable[..., Result]
) -> None:
    assert tune("run", write_search()).exit_code == 0
    shutil.rmtree(tmp_path / "runs" / "simulated")
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments)
    (of_study,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    folder = tmp_path / "downloaded"
    folder.mkdir()
    client.download_artifacts(of_study.info.run_id, "results.json", str(folder))
    on_front = [run for run in runs if run.data.tags.get("on_front") == "true"]
    assert on_front
    for run in on_front:
        number = int(run.data.tags["trial_number"])
        export = tune("export", folder, "--format", "policy", "--trial", number)
        assert (export.exit_code, export.stderr) == (0, "")
