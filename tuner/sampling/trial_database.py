"""Opens Optuna's database of trials the way that one driver with many workers uses it best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.storages import RDBStorage

from mlflow_config.sqlite_file import is_on_local_disk


def open_database(url: str) -> RDBStorage:
    """Optuna's storage at the address, its tables made where they are missing.

    A SQLite file on a local disk gets a write-ahead log, which is not forced to the disk with each trial. What was
    written outlives the process in any case; a power failure may take the last trials with it, and harms no others.
    Other databases are as durable as they are set up to be.
    """
    database = RDBStorage(url)
    path = database.engine.url.database
    is_file = database.engine.dialect.name == "sqlite" and path not in (None, "", ":memory:")
    if is_file and is_on_local_disk(Path(str(path)).parent):
        sqlalchemy.event.listen(database.engine, "connect", _use_write_ahead_log)
        # Connections that were opened before; the next ones are opened with the log.
        database.engine.dispose()
    return database


def _use_write_ahead_log(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
