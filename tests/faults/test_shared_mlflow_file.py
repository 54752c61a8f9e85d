"""Two searches at once that keep their runs in one MLflow file, also where one of them is killed."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from drivers import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

EXIT_DONE = 0
NUM_POLICIES = 8
STUDIES = ("one", "other")


def write_studies(folder: Path) -> None:
    """Two search files for one folder of studies."""
    search = yaml.safe_load((folder / "search.yaml").read_text())
    for study in STUDIES:
        (folder / f"{study}.yaml").write_text(yaml.safe_dump({**search, "study": study}))


def runs_of(folder: Path) -> dict[str, list[tuple[str | None, str]]]:
    """Trial number and status of each run, by the study that it or its parent is of."""
    query = (
        "SELECT COALESCE(parent.name, runs.name), number.value, runs.status FROM runs "
        "LEFT JOIN tags AS number ON number.run_uuid = runs.run_uuid AND number.key = 'trial_number' "
        "LEFT JOIN tags AS up ON up.run_uuid = runs.run_uuid AND up.key = 'mlflow.parentRunId' "
        "LEFT JOIN runs AS parent ON parent.run_uuid = up.value"
    )
    with contextlib.closing(sqlite3.connect(folder / "runs" / "mlflow.db")) as connection:
        found: dict[str, list[tuple[str | None, str]]] = {}
        for study, number, status in connection.execute(query):
            found.setdefault(study, []).append((number, status))
    return {study: sorted(runs, key=str) for study, runs in found.items()}


def whole(folder: Path, study: str) -> list[tuple[str | None, str]]:
    """What must be there of a study, by its own results."""
    results = json.loads((folder / "runs" / study / "results.json").read_text())
    assert results["status"] == "finished", results["stop_reason"]
    assert len({t["policy_key"] for t in results["trials"] if t["status"] == "COMPLETED"}) == NUM_POLICIES
    words = {"COMPLETED": "FINISHED", "CANCELLED": "KILLED"}
    runs = [(str(trial["number"]), words[trial["status"]]) for trial in results["trials"]]
    return sorted([*runs, (None, "FINISHED")], key=str)


@pytest.mark.parametrize("kill_one", [False, True], ids=["both end", "one is killed"])
def test_each_has_all_of_its_runs(tmp_path: Path, new_folder: Callable[..., Path], kill_one: bool) -> None:
    folder = new_folder(tmp_path / "studies")
    write_studies(folder)
    drivers = [Driver(folder, ("run", f"{study}.yaml"), trial_s=0.2, output=tmp_path / study) for study in STUDIES]
    if kill_one:
        drivers[0].wait_until_logged("trial   2")
        drivers[0].send(signal.SIGKILL)
        drivers[0].end()
        drivers[0] = Driver(folder, ("run", "one.yaml", "--resume"), output=tmp_path / "resumed")
    for driver in drivers:
        ended = driver.end()
        assert (ended.code, "Traceback" in ended.logged) == (EXIT_DONE, False), ended
        assert "MLflow" not in ended.logged, ended.logged
    assert runs_of(folder) == {study: whole(folder, study) for study in STUDIES}
