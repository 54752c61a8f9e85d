from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_config import names
from mlflow_config.entries import entries
from mlflow_config.errors import TrackingError
from mlflow_config.recorder import RunOutcome, StudyRecorder
from mlflow_config.settings import TrackingSettings, tracking_settings
from mlflow_config.sqlite_runs import SqliteRuns
from mlflow_config.store import TrackingStore

OpenRecorder = Callable[..., StudyRecorder]
TABLES = ("runs", "metrics", "latest_metrics", "params", "tags")


@pytest.fixture
def other_settings(tmp_path: Path, empty_database: Path) -> TrackingSettings:
    """A store that is written by MLflow's client alone."""
    made = tracking_settings(output_dir=tmp_path / "other", experiment="a-model")
    assert made.sqlite_path is not None
    made.sqlite_path.parent.mkdir()
    shutil.copy(empty_database, made.sqlite_path)
    return made


def database(settings: TrackingSettings) -> contextlib.closing[sqlite3.Connection]:
    assert settings.sqlite_path is not None
    return contextlib.closing(sqlite3.connect(settings.sqlite_path))


def work(store: TrackingStore) -> Iterator[str]:
    """Everything that is done to runs; gives back their ids."""
    experiment_id = store.find_or_create_experiment("a-model", tags={})
    parent = store.create_run(experiment_id, "study", tags={"mlflow.user": "me"}, start_time_ms=1000)
    yield parent.run_id
    own = {"mlflow.parentRunId": "the parent", names.TRIAL_NUMBER: "0"}
    run = store.create_run(experiment_id, "0: none @2x4", tags=own, start_time_ms=2000)
    yield run.run_id
    made = entries(
        params={names.POLICY_KEY: "abc", names.GLOBAL_BATCH_SIZE: 8, names.PRESERVE_RNG_STATE: True},
        metrics={names.TOKENS_PER_SECOND: 5123.25, names.PEAK_MEMORY_BYTES: 2**40, names.NUM_STEPS: 0},
        tags={names.STATUS: "COMPLETED", names.REASON: "line one\nline two 'quoted'", names.FEASIBLE: True},
    )
    for _ in range(2):
        store.write(run, made)
    store.set_status(run, "FINISHED", end_time_ms=3500)
    store.write(run, entries(metrics={names.TOKENS_PER_SECOND: 6000.0}, tags={names.FEASIBLE: False}))
    store.write(run, entries(metrics={names.TOKENS_PER_SECOND: 4000.0}))
    again = store.create_run(experiment_id, "1", tags={}, start_time_ms=4000)
    yield again.run_id
    store.set_status(again, "KILLED", end_time_ms=4500)
    store.set_status(again, "RUNNING")


def rows(settings: TrackingSettings, run_ids: list[str]) -> dict[str, list[tuple[object, ...]]]:
    """The rows of these runs, with the runs' places in the list for their ids."""

    def plain(value: object) -> object:
        text = str(value).replace(str(settings.artifact_root), "ROOT")
        for index, run_id in enumerate(run_ids):
            text = text.replace(run_id, f"run {index}")
        return text

    with database(settings) as connection:
        return {
            table: sorted(tuple(map(plain, row)) for row in connection.execute(f"SELECT * FROM {table}"))
            for table in TABLES
        }


def test_every_row_is_what_mlflows_own_client_writes(
    settings: TrackingSettings, other_settings: TrackingSettings
) -> None:
    ours, theirs = TrackingStore(settings), TrackingStore(other_settings)
    ours.open()
    theirs.open()
    assert ours._sqlite_runs is not None, "the installed MLflow has other tables"
    assert theirs._sqlite_runs is not None
    theirs._sqlite_runs.close()
    theirs._sqlite_runs = None
    our_ids, their_ids = list(work(ours)), list(work(theirs))
    expected = rows(other_settings, their_ids)
    assert len(expected["metrics"]) == 5
    assert rows(settings, our_ids) == expected
    ours.close()
    theirs.close()


@pytest.mark.parametrize("status", [None, "RUNNING", "KILLED"])
def test_runs_are_found_as_mlflows_own_client_finds_them(settings: TrackingSettings, status: str | None) -> None:
    store = TrackingStore(settings)
    store.open()
    list(work(store))
    experiment_id = store.find_or_create_experiment("a-model", tags={})
    for number in range(3):
        run = store.create_run(
            experiment_id, "r", tags={"colour": "it's red", "n": str(number)}, start_time_ms=9 - number
        )
        store.write(run, entries(params={"p": number, "q": 1}))
    store.set_status(run, "KILLED", end_time_ms=20)
    found = store.find_runs(experiment_id, "colour", "it's red", status=status)
    assert [r.tags["n"] for r in found] == {None: ["2", "1", "0"], "RUNNING": ["1", "0"], "KILLED": ["2"]}[status]
    assert store._sqlite_runs is not None
    store._sqlite_runs.close()
    store._sqlite_runs = None
    assert store.find_runs(experiment_id, "colour", "it's red", status=status) == found
    store.close()


def test_a_deleted_run_is_not_found(settings: TrackingSettings) -> None:
    store = TrackingStore(settings)
    store.open()
    *_, last = work(store)
    experiment_id = store.find_or_create_experiment("a-model", tags={})
    assert len(store.find_runs(experiment_id, "mlflow.runName", "1")) == 1
    MlflowClient(settings.uri).delete_run(last)
    assert store.find_runs(experiment_id, "mlflow.runName", "1") == []
    store.close()


def test_a_file_with_other_tables_is_left_to_mlflow(settings: TrackingSettings) -> None:
    with database(settings) as connection:
        assert settings.sqlite_path is not None
        assert SqliteRuns(settings.sqlite_path).has_known_tables()
        connection.execute("ALTER TABLE runs ADD COLUMN colour TEXT")
        connection.commit()
    store = TrackingStore(settings)
    store.open()
    assert store._sqlite_runs is None
    assert len(list(work(store))) == 3
    store.close()


def test_a_run_that_was_deleted_is_refused_in_mlflows_words(
    settings: TrackingSettings, open_recorder: OpenRecorder
) -> None:
    recorder = open_recorder()
    recorder.start_trial(0, name="0")
    client = MlflowClient(settings.uri)
    (run,) = client.search_runs([recorder.experiment_id], f"tags.{names.TRIAL_NUMBER} = '0'")
    client.delete_run(run.info.run_id)
    with pytest.raises(TrackingError, match=r"must be in the 'active' state"):
        recorder.record_trial(0, outcome=RunOutcome.FINISHED, name="0", params={}, metrics={}, tags={"a": "b"})


def test_an_experiment_that_was_deleted_is_refused_in_mlflows_words(
    settings: TrackingSettings, open_recorder: OpenRecorder
) -> None:
    recorder = open_recorder()
    MlflowClient(settings.uri).delete_experiment(recorder.experiment_id)
    with pytest.raises(TrackingError, match=r"must be in the 'active' state"):
        recorder.start_trial(0, name="0")


def test_what_fails_halfway_leaves_nothing(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    recorder.start_trial(0, name="0")
    with database(settings) as connection:
        connection.execute("ALTER TABLE tags RENAME TO tags_elsewhere")
        connection.commit()
        with pytest.raises(TrackingError, match="no such table: tags"):
            recorder.record_trial(0, outcome=RunOutcome.FINISHED, name="0", params={"p": 1}, metrics={}, tags={"a": 1})
        assert connection.execute("SELECT count(*) FROM params WHERE key = 'p'").fetchone() == (0,)
        connection.execute("ALTER TABLE tags_elsewhere RENAME TO tags")
        connection.commit()
