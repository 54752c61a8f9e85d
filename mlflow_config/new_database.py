"""A new SQLite file with MLflow's tables, which appears whole or not at all.

MLflow makes them in some forty steps, which take seconds, and cannot go on where a process that was killed or
interrupted left off: such a file would take no study any more.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
import tempfile
from pathlib import Path

from mlflow_config.sqlite_file import is_on_local_disk


def create_database(path: Path) -> None:
    """Makes the file and its folder; a file that is there by then, which another study made, is left alone."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mlflow-") as folder:
        made = Path(folder, "mlflow.db")
        store = SqlAlchemyStore(f"sqlite:///{made}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)  # type: ignore[no-untyped-call]
        store.engine.dispose()
        if is_on_local_disk(path.parent):
            # With a write-ahead log a page open in the browser does not hold up the search, and a trial is recorded in
            # about half the time. The mode stays with the file.
            with contextlib.closing(sqlite3.connect(made)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
        _place(made, path)


def _place(made: Path, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        shutil.copyfile(made, temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:  # A file system without hard links.
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
