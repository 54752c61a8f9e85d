"""What the stores of a study hold, read past the product's own code, and what must be true of them in the end."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUDY = "simulated"
#: MLflow's word for trials that did not end as they should.
_RUN_STATUSES = {"CANCELLED": "KILLED", "NODE_LOST": "FAILED", "TIMED_OUT": "FAILED", "FAILED": "FAILED"}


@dataclass(frozen=True)
class StudyState:
    """A study that is over, as its files and stores show it.

    Attributes:
        front: Of each policy measured: its key, whether it is on the front, whether it is the best.
        files: Below the folder of all studies, without artifacts of MLflow.
    """

    front: list[tuple[str, bool, bool]]
    files: list[str]


@dataclass(frozen=True)
class Undisturbed:
    """A study that nobody killed.

    Attributes:
        counts: How often each function was entered.
    """

    state: StudyState
    counts: dict[str, int]


def finished_results(folder: Path) -> dict[int, dict[str, Any]]:
    """Results that Optuna's database holds of finished trials, by number; none where there is no database."""
    rows = _rows(
        folder / "runs" / STUDY / "study.db",
        "SELECT trials.number, value_json FROM trials JOIN trial_user_attributes USING (trial_id) "
        "WHERE key = 'result' AND state != 'RUNNING'",
    )
    return {number: json.loads(value) for number, value in rows}


def state_of(folder: Path) -> StudyState:
    """The state of the study below the folder.

    Raises:
        AssertionError: It holds something twice, something that is unfinished, or litter.
    """
    results = json.loads((folder / "runs" / STUDY / "results.json").read_text())
    assert results["status"] == "finished", results["stop_reason"]
    _check_optuna(folder, results)
    _check_mlflow(folder, results)
    front = sorted(
        (t["policy_key"], t["on_front"], t["is_best"]) for t in results["trials"] if t["status"] != "CANCELLED"
    )
    assert len({key for key, _, _ in front}) == len(front), "a policy was measured twice"
    return StudyState(front, _files(folder / "runs"))


def _check_optuna(folder: Path, results: dict[str, Any]) -> None:
    trials = _rows(folder / "runs" / STUDY / "study.db", "SELECT number, state FROM trials ORDER BY number")
    assert {state for _, state in trials} <= {"COMPLETE", "FAIL"}, trials
    assert [number for number, _ in trials] == list(range(len(trials)))
    kept = finished_results(folder)
    shown = {trial["number"]: trial for trial in results["trials"]}
    assert {number for number, trial in shown.items() if trial["status"] == "COMPLETED"} <= kept.keys()
    for number, result in kept.items():
        same = ("status", "relative_speed", "peak_memory_bytes", "started_at")
        assert {name: result[name] for name in same} == {name: shown[number][name] for name in same}


def _check_mlflow(folder: Path, results: dict[str, Any]) -> None:
    runs = _rows(
        folder / "runs" / "mlflow.db",
        "SELECT status, value FROM runs LEFT JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = 'trial_number'",
    )
    studies = [status for status, number in runs if number is None]
    assert studies == ["FINISHED"], "one run of the study itself"
    statuses = {int(number): status for status, number in runs if number is not None}
    assert len(statuses) == len(runs) - 1, "a trial has one run"
    expected = {t["number"]: _RUN_STATUSES.get(t["status"], "FINISHED") for t in results["trials"]}
    # A trial that had no policy yet when its driver died is in Optuna's database and nowhere else.
    assert statuses == expected


def _files(runs: Path) -> list[str]:
    artifacts = [path for path in runs.rglob("*") if "mlflow-artifacts" in path.parts]
    assert [str(path) for path in artifacts if path.name.startswith(".")] == []
    return sorted(str(path.relative_to(runs)) for path in runs.rglob("*") if path not in artifacts and path.is_file())


def _rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of the query; none where the driver died before there was a database with tables."""
    if not database.exists():
        return []
    with contextlib.closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name IN ('trials', 'runs')").fetchall()
        return connection.execute(query).fetchall() if tables else []
