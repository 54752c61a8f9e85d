"""Writes and finds runs straight in MLflow's tables in a SQLite file, row for row as MLflow's own client would.

MLflow takes some 30 ms of processor time to write a trial and some 2 to find one, most of it to build and unbuild
objects, and a search with a thousand workers has less than that per trial. The rows take under one.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlflow_config.entries import Entries
from mlflow_config.stored_run import RUNNING, StoredRun

#: The tables as this file knows them. With any other column in one of them, MLflow's client writes.
_COLUMNS = {
    "runs": (
        "run_uuid name source_type source_name entry_point_name user_id status start_time end_time source_version "
        "lifecycle_stage artifact_uri experiment_id deleted_time"
    ),
    "metrics": "key value timestamp run_uuid step is_nan",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
    "params": "key value run_uuid",
    "tags": "key value run_uuid",
}
#: Seconds that one statement waits for a locked file; who calls tries again.
_LOCK_TIMEOUT_S = 1.0
_INSERT_RUN = """
INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time,
                  source_version, lifecycle_stage, artifact_uri, experiment_id)
SELECT ?, ?, 'UNKNOWN', '', '', ?, ?, ?, '', 'active', ?, experiment_id
FROM experiments WHERE experiment_id = ? AND lifecycle_stage = 'active'
"""
_SET_STATUS = """
UPDATE runs SET status = ?, end_time = coalesce(?, end_time) WHERE run_uuid = ? AND lifecycle_stage = 'active'
"""
_INSERT_TAG = """
INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)
ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value
"""
_INSERT_PARAM = "INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?) ON CONFLICT (key, run_uuid) DO NOTHING"
_INSERT_METRIC = """
INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, 0, 0) ON CONFLICT DO NOTHING
"""
_INSERT_LATEST_METRIC = """
INSERT INTO latest_metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, 0, 0)
ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value, timestamp = excluded.timestamp, step = excluded.step
WHERE (excluded.step, excluded.timestamp, excluded.value)
    > (latest_metrics.step, latest_metrics.timestamp, latest_metrics.value)
"""
_FIND_RUNS = """
SELECT run_uuid, artifact_uri, status, start_time FROM runs JOIN tags USING (run_uuid)
WHERE experiment_id = :experiment_id AND lifecycle_stage = 'active' AND key = :tag AND value = :value
      AND status = coalesce(:status, status)
ORDER BY start_time, run_uuid
"""


class SqliteRuns:
    """The runs of one file. Methods raise ``sqlite3.Error``, and leave to MLflow what only it can refuse properly."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
        if self._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            # What was written outlives the process; only a power failure may cost the last trials' rows.
            self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("PRAGMA foreign_keys=ON")

    def has_known_tables(self) -> bool:
        """False where the file is of a release of MLflow with other tables."""
        return all(
            {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")} == set(columns.split())
            for table, columns in _COLUMNS.items()
        )

    def find_runs(self, experiment_id: str, tag: str, value: str, *, status: str | None) -> list[StoredRun]:
        """Every run that was not deleted and whose tag has the value, oldest first."""
        wanted = {"experiment_id": int(experiment_id), "tag": tag, "value": value, "status": status}
        found = self._connection.execute(_FIND_RUNS, wanted).fetchall()
        return [
            StoredRun(
                run_id=run_id,
                artifact_uri=artifact_uri or "",
                experiment_id=experiment_id,
                status=run_status,
                start_time_ms=start_time_ms,
                param_names=frozenset(
                    name for (name,) in self._connection.execute("SELECT key FROM params WHERE run_uuid = ?", (run_id,))
                ),
                tags=dict(self._connection.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (run_id,))),
            )
            for run_id, artifact_uri, run_status, start_time_ms in found
        ]

    def create_run(
        self, sibling: StoredRun, name: str, *, tags: Mapping[str, str], start_time_ms: int
    ) -> StoredRun | None:
        """A new run beside another one of its experiment, RUNNING; None where the experiment takes no more."""
        run_id = uuid.uuid4().hex
        run = StoredRun(
            run_id=run_id,
            artifact_uri=sibling.artifact_uri.replace(sibling.run_id, run_id),
            experiment_id=sibling.experiment_id,
            status=RUNNING,
            start_time_ms=start_time_ms,
            param_names=frozenset(),
            tags={**tags, "mlflow.runName": name},
        )
        user = tags.get("mlflow.user", "unknown")
        row = (run_id, name, user, RUNNING, start_time_ms, run.artifact_uri, run.experiment_id)
        with self._transaction():
            if self._connection.execute(_INSERT_RUN, row).rowcount != 1:
                return None
            self._connection.executemany(_INSERT_TAG, [(key, value, run_id) for key, value in run.tags.items()])
        return run

    def write(self, run: StoredRun, entries: Entries) -> bool:
        """Adds everything but the texts; False where the run takes nothing."""
        run_id = run.run_id
        params = [(key, value, run_id) for key, value in entries.params.items()]
        tags = [(key, value, run_id) for key, value in entries.tags.items()]
        # The run's own start is the time of every metric: written twice, a metric is the same row, not a second one.
        metrics = [(key, value, run.start_time_ms, run_id) for key, value in entries.metrics.items()]
        with self._transaction():
            found = self._connection.execute(
                "SELECT 1 FROM runs WHERE run_uuid = ? AND lifecycle_stage = 'active'", (run_id,)
            )
            if found.fetchone() is None:
                return False
            self._connection.executemany(_INSERT_PARAM, params)
            self._connection.executemany(_INSERT_METRIC, metrics)
            self._connection.executemany(_INSERT_LATEST_METRIC, metrics)
            self._connection.executemany(_INSERT_TAG, tags)
        return True

    def set_status(self, run: StoredRun, status: str, *, end_time_ms: int | None) -> bool:
        """Sets the run's status; False where the run takes nothing."""
        with self._transaction():
            return self._connection.execute(_SET_STATUS, (status, end_time_ms, run.run_id)).rowcount == 1

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
