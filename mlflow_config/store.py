"""The few MLflow operations that a study needs, each waiting for a busy store.

MLflow takes two seconds to import, so it is imported when a store is opened and not before.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow_config.database_driver import with_installed_driver
from mlflow_config.database_errors import driver_error, is_locked
from mlflow_config.entries import Entries
from mlflow_config.errors import TrackingError
from mlflow_config.existing_store import check_is_store
from mlflow_config.new_database import create_database
from mlflow_config.settings import TrackingSettings
from mlflow_config.stored_run import StoredRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

PARENT_RUN_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
TABLES_TAG = "mlflow.loggedArtifacts"

#: What one `log_batch` call takes at most; together they must stay within 1000.
_MAX_PARAMS_PER_BATCH = 100
_MAX_TAGS_PER_BATCH = 100
_MAX_METRICS_PER_BATCH = 800
_RUNS_PER_PAGE = 1000
_RETRY_PAUSE_S = 0.2
_CONNECT_TIMEOUT_S = 5.0
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}

#: Left alone where the user has set them. Usage data is not sent to MLflow's makers from a user's cluster; a server
#: that is down costs seconds per call, not four minutes; and stdout belongs to our own results.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
#: MLflow tells of each migration of a new database, and prints a traceback for each statement that found it locked.
_LOG_LEVELS = {"mlflow": logging.WARNING, "alembic": logging.WARNING, "mlflow.store.db.utils": logging.CRITICAL}


class TrackingStore:
    """An MLflow store, addressed explicitly: no run is ever "active" and nothing global is set.

    Every method raises ``TrackingError`` where the store cannot do it. A locked database delays a call by up to
    ``patience_s``; once it did not answer in that time, the calls that follow do not wait again until one succeeds.
    """

    def __init__(self, settings: TrackingSettings, *, patience_s: float = 60.0) -> None:
        self._settings = settings
        self._patience_s = patience_s
        self._is_answering = True
        self._client: MlflowClient | None = None

    def load(self) -> None:
        """Imports what `open` needs. A signal must not cut it short: half an import cannot be taken up again."""
        _load(self._settings)

    def open(self) -> None:
        """Connects, and creates the database file where it is missing."""
        if self._client is None:
            _check_address(self._settings)
            self._client = self._patiently("open the store", lambda: _connect(self._settings))

    def open_existing(self) -> None:
        """Connects to a store that has been written to; leaves a file or database that is none as it is."""
        _check_address(self._settings)
        if not self._settings.is_server:
            check_is_store(self._settings)
        self.open()

    def close(self) -> None:
        """Leaves a SQLite file complete in itself, so that it can be copied. May be called twice."""
        self._client = None
        path = self._settings.sqlite_path
        if path is not None and path.exists():
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def find_or_create_experiment(self, name: str, *, tags: Mapping[str, str]) -> str:
        """The id of the experiment of that name; the tags are given to a new one."""

        def operation() -> str:
            from mlflow.exceptions import MlflowException

            experiment = self._mlflow.get_experiment_by_name(name)
            if experiment is None:
                try:
                    return str(
                        self._mlflow.create_experiment(
                            name, artifact_location=self._artifact_location(name), tags=dict(tags)
                        )
                    )
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                    experiment = self._mlflow.get_experiment_by_name(name)  # another study was faster
                    assert experiment is not None
            if experiment.lifecycle_stage != "active":
                raise TrackingError(
                    f"tracking.experiment is {name!r}, which was deleted in {self._settings.shown_uri}; an experiment "
                    f"that is not deleted is expected. Restore it with `mlflow experiments restore -x "
                    f"{experiment.experiment_id}`, or name another one"
                )
            return str(experiment.experiment_id)

        return self._patiently(f"find experiment {name!r}", operation)

    def find_runs(self, experiment_id: str, tag: str, value: str, *, status: str | None = None) -> list[StoredRun]:
        """Every run, deleted ones aside, whose tag has the value; oldest first.

        Args:
            status: Only runs of this status; None finds all.
        """
        conditions = f"tags.`{tag}` = {_quoted(value)}" + (f" and attributes.status = '{status}'" if status else "")

        def operation() -> list[StoredRun]:
            found: list[StoredRun] = []
            token: str | None = None
            while True:
                page = self._mlflow.search_runs(
                    [experiment_id],
                    filter_string=conditions,
                    max_results=_RUNS_PER_PAGE,
                    order_by=["attributes.start_time ASC"],
                    page_token=token,
                )
                found.extend(map(_stored, page))
                token = page.token
                if not token:
                    return found

        return self._patiently(f"look for runs with {tag} {value!r}", operation)

    def find_own_runs(self, tag: str, value: str, *, with_tag: str) -> list[StoredRun]:
        """Runs of any experiment that have the value in one tag and anything in another; oldest first."""
        conditions = f"tags.`{tag}` = {_quoted(value)} and tags.`{with_tag}` LIKE '%'"

        def operation() -> list[StoredRun]:
            experiments = [found.experiment_id for found in self._mlflow.search_experiments()]
            found = self._mlflow.search_runs(experiments, conditions, order_by=["attributes.start_time ASC"])
            return [_stored(run) for run in found] if experiments else []

        return self._patiently(f"look for runs with {tag} {value!r}", operation)

    def read_text(self, run: StoredRun, path: str) -> str:
        """One file of the run."""

        def operation() -> str:
            with tempfile.TemporaryDirectory() as folder:
                return Path(self._mlflow.download_artifacts(run.run_id, path, folder)).read_text()

        return self._patiently(f"read {path}", operation)

    def create_run(self, experiment_id: str, name: str, *, tags: Mapping[str, str], start_time_ms: int) -> StoredRun:
        """A new run, RUNNING. Where it fails the run may exist all the same: look for it before creating it again."""

        def operation() -> StoredRun:
            return _stored(
                self._mlflow.create_run(experiment_id, start_time=start_time_ms, tags=dict(tags), run_name=name)
            )

        return self._patiently(f"create run {name!r}", operation)

    def write(self, run: StoredRun, entries: Entries) -> None:
        """Adds the entries to the run, texts first. Writing the same ones again changes nothing."""
        for path, text in entries.texts.items():
            self._patiently(f"write {path}", partial(self._write_text, run, path, text))
        for batch in _batches(entries):
            self._patiently("write a run", partial(self._log_batch, run, batch))

    def set_status(self, run: StoredRun, status: str, *, end_time_ms: int | None = None) -> None:
        """Sets the run's status; ``end_time_ms`` goes with every status but RUNNING."""

        def operation() -> None:
            if end_time_ms is None:
                self._mlflow.update_run(run.run_id, status=status)
            else:
                self._mlflow.set_terminated(run.run_id, status, end_time_ms)

        self._patiently("reopen a run" if end_time_ms is None else "end a run", operation)

    @property
    def _mlflow(self) -> MlflowClient:
        if self._client is None:
            raise TrackingError(f"the store {self._settings.shown_uri} is not open; open it first")
        return self._client

    def _artifact_location(self, experiment: str) -> str | None:
        if self._settings.artifact_root is None:
            return None
        folder = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in experiment).lstrip(".")
        return f"{self._settings.artifact_root}/{folder or '_'}"

    def _log_batch(self, run: StoredRun, entries: Entries) -> None:
        from mlflow.entities import Metric, Param, RunTag

        # The run's own start is the time of every metric: written twice, a metric is the same row, not a second one.
        self._mlflow.log_batch(
            run.run_id,
            metrics=[Metric(name, value, run.start_time_ms, 0) for name, value in entries.metrics.items()],
            params=[Param(name, value) for name, value in entries.params.items()],
            tags=[RunTag(name, value) for name, value in entries.tags.items()],
            synchronous=True,
        )

    def _write_text(self, run: StoredRun, path: str, text: str) -> None:
        # MLflow reads the run again for each artifact, which takes longer than all of its metrics.
        if run.artifact_uri.startswith("file:"):
            _write_file(Path(url2pathname(urlsplit(run.artifact_uri).path)) / path, text)
        else:
            self._mlflow.log_text(run.run_id, text, path)

    def _patiently(self, action: str, operation: Callable[[], T]) -> T:
        deadline = time.monotonic() + (self._patience_s if self._is_answering else 0.0)
        while True:
            try:
                answer = operation()
            except TrackingError:
                raise
            # Database drivers and artifact stores raise their own errors through MLflow.
            except Exception as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    self._is_answering = False
                    raise TrackingError(
                        f"cannot {action} in {self._settings.shown_uri}: {_reason(error)}. Nothing measured is lost: "
                        f"what is missing there can be recorded once the store answers, by resuming the study"
                    ) from error
                time.sleep(_RETRY_PAUSE_S)
            else:
                self._is_answering = True
                return answer


def _load(settings: TrackingSettings) -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    importlib.import_module("mlflow" if settings.is_server else "mlflow.store.tracking.sqlalchemy_store")


def _connect(settings: TrackingSettings) -> MlflowClient:
    _load(settings)
    from mlflow import MlflowClient

    for name, level in _LOG_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    if settings.sqlite_path is not None and not settings.sqlite_path.exists():
        create_database(settings.sqlite_path)
    uri = with_installed_driver(settings.uri)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _check_address(settings: TrackingSettings) -> None:
    """Finds a dead database address within seconds; MLflow alone would try it for two minutes."""
    parts = urlsplit(settings.uri)
    port = _DATABASE_PORTS.get(parts.scheme.partition("+")[0])
    if port is None or not parts.hostname:
        return
    address = (parts.hostname, parts.port or port)
    try:
        socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise TrackingError(
            f"tracking.uri is {settings.shown_uri}, but {address[0]}:{address[1]} does not answer ({error}); a "
            f"running database is expected. Start it, or correct the address"
        ) from error


def _stored(run: Run) -> StoredRun:
    return StoredRun(
        run_id=run.info.run_id,
        artifact_uri=run.info.artifact_uri or "",
        experiment_id=run.info.experiment_id,
        status=run.info.status,
        start_time_ms=run.info.start_time,
        param_names=frozenset(run.data.params),
        tags=run.data.tags,
    )


def _batches(entries: Entries) -> list[Entries]:
    params = _slices(list(entries.params.items()), _MAX_PARAMS_PER_BATCH)
    metrics = _slices(list(entries.metrics.items()), _MAX_METRICS_PER_BATCH)
    tags = _slices(list(entries.tags.items()), _MAX_TAGS_PER_BATCH)
    count = max(len(params), len(metrics), len(tags))
    return [
        Entries(
            params=dict(params[index]) if index < len(params) else {},
            metrics=dict(metrics[index]) if index < len(metrics) else {},
            tags=dict(tags[index]) if index < len(tags) else {},
        )
        for index in range(count)
    ]


def _slices(items: Sequence[tuple[str, T]], size: int) -> list[Sequence[tuple[str, T]]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _quoted(value: str) -> str:
    # MLflow's filters know two kinds of quotes and no way to escape one.
    quote = '"' if "'" in value else "'"
    if quote in value:
        raise ValueError(f"{value} holds both kinds of quotes; one kind at most can be searched for")
    return f"{quote}{value}{quote}"


def _write_file(path: Path, text: str) -> None:
    """The file appears whole. What a killed driver left half-written is replaced by whoever records the run again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.part"
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _is_busy(error: BaseException) -> bool:
    """True where the same call may succeed in a moment: the database is locked, or the server says so."""
    from mlflow.exceptions import MlflowException

    told = isinstance(error, MlflowException) and error.error_code == "TEMPORARILY_UNAVAILABLE"
    return is_locked(error) or (told and driver_error(error) is None)


def _reason(error: BaseException) -> str:
    said = driver_error(error) or error
    if isinstance(said, ModuleNotFoundError):
        return f"the package {said.name!r}, which this kind of store needs, is not installed"
    return " ".join(f"{type(said).__name__}: {said}".split())[:300].rstrip(".")
