"""The first study in a folder makes MLflow's tables, which takes seconds; what is there afterwards is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_config.new_database import create_database
from mlflow_config.settings import TrackingSettings, tracking_settings
from mlflow_config.store import TrackingStore

_OPEN = """
import sys
from pathlib import Path
from mlflow_config.settings import tracking_settings
from mlflow_config.store import TrackingStore

store = TrackingStore(tracking_settings(output_dir=Path(sys.argv[1]), experiment="new"))
store.open()
store.find_or_create_experiment(sys.argv[2], tags={})
store.close()
"""


@pytest.fixture
def opens(tmp_path: Path) -> Callable[[str], subprocess.Popen[bytes]]:
    """Starts a process that opens the store in ``runs``; what it makes on the way lies in ``temporary``."""
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}

    def start(experiment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _OPEN, str(tmp_path / "runs"), experiment]
        return subprocess.Popen(command, cwd=tmp_path, env=environment)

    return start


def settings_of(folder: Path) -> TrackingSettings:
    return tracking_settings(output_dir=folder / "runs", experiment="new")


def wait_for_tables(folder: Path) -> None:
    """Until some of the tables are made, and by far not all."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        for made in folder.glob("**/*.db"):
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(made)) as database:
                if database.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0] > 1:
                    return
        time.sleep(0.005)
    raise AssertionError(f"no table was made below {folder}")


def test_one_that_is_killed_on_the_way_leaves_none_and_the_next_makes_it(
    tmp_path: Path, opens: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    killed = opens("killed")
    wait_for_tables(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == []
    store = TrackingStore(settings_of(tmp_path))
    store.open()
    assert store.find_or_create_experiment("next", tags={})
    store.close()
    assert (tmp_path / "runs" / "mlflow.db").exists()


def test_two_at_once_share_one(tmp_path: Path, opens: Callable[[str], subprocess.Popen[bytes]]) -> None:
    both = [opens("one"), opens("other")]
    assert [process.wait(timeout=200) for process in both] == [0, 0]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlflow.db"]
    with contextlib.closing(sqlite3.connect(tmp_path / "runs" / "mlflow.db")) as database:
        assert {name for (name,) in database.execute("SELECT name FROM experiments")} == {"Default", "one", "other"}


def test_it_is_made_where_files_cannot_have_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*names: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", refuse)
    create_database(tmp_path / "runs" / "mlflow.db")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlflow.db"]
    with contextlib.closing(sqlite3.connect(tmp_path / "runs" / "mlflow.db")) as database:
        assert database.execute("SELECT name FROM experiments").fetchall() == [("Default",)]
