"""Opens Optuna's database of trials the way that one driver with many workers uses it best."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage

from mlflow_config.database_driver import with_installed_driver
from mlflow_config.sqlite_file import is_on_local_disk

#: A PostgreSQL server that is cut off is noticed within a minute; the system itself waits two hours. These are options
#: of the client library (https://www.postgresql.org/docs/current/libpq-connect.html); an address may say otherwise.
_POSTGRESQL_OPTIONS = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class DatabaseGoneError(StorageInternalError):
    """The file was removed or replaced by another one while it was in use."""


def open_database(url: str) -> RDBStorage:
    """Optuna's storage at the address, its tables made where they are missing.

    A SQLite file on a local disk gets a write-ahead log, which is not forced to the disk with each trial. What was
    written outlives the process in any case; a power failure may take the last trials with it, and harms no others.
    Other databases are as durable as they are set up to be.
    """
    url = with_installed_driver(url)
    database = RDBStorage(url, engine_kwargs=_engine_options(url))
    path = database.engine.url.database
    is_file = database.engine.dialect.name == "sqlite" and path not in (None, "", ":memory:")
    if is_file:
        file = Path(str(path))
        if is_on_local_disk(file.parent):
            sqlalchemy.event.listen(database.engine, "connect", _use_write_ahead_log)
            # Connections that were opened before; the next ones are opened with the log.
            database.engine.dispose()
        _refuse_another_file(database.engine, file)
    return database


def _engine_options(url: str) -> dict[str, Any]:
    address = sqlalchemy.make_url(url)
    if address.get_backend_name() == "sqlite":
        return {}
    # A connection that the server has closed meanwhile is replaced before it is used.
    options: dict[str, Any] = {"pool_pre_ping": True}
    if address.get_backend_name() == "postgresql" and address.get_driver_name() in ("psycopg", "psycopg2"):
        unsaid = {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in address.query}
        options["connect_args"] = unsaid
    return options


def _refuse_another_file(engine: sqlalchemy.Engine, path: Path) -> None:
    """SQLite goes on writing to a file that has lost its name, and nobody would find it again."""
    opened = os.stat(path)

    def check(connection: Any, record: object, proxy: object) -> None:
        try:
            is_same = os.path.samestat(os.stat(path), opened)
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise DatabaseGoneError("the file was removed or replaced while it was in use")

    sqlalchemy.event.listen(engine, "checkout", check)


def _use_write_ahead_log(connection: Any, _: object) -> None:
    # A file that may only be read, or is locked, is told to whoever uses the connection; its mode stays with the file.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA journal_mode=WAL")
