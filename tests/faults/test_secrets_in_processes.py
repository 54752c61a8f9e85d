"""Passwords of the stores of a real study, looked for in every process below its driver and in all that it writes."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from real_study import EXIT_DONE, RealStudy

if TYPE_CHECKING:
    from postgresql import PostgresqlServer

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

#: Of the stores' addresses, and of a variable that MLflow reads.
IN_ADDRESS, IN_VARIABLE = b"pl4nted", b"v4riable-s3cret"
WORKER = "runners.worker_main"


def what_is_known_to(process: psutil.Process) -> bytes:
    """Command line and environment, as the system shows them to the user."""
    known = b""
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            known += Path(f"/proc/{process.pid}/{name}").read_bytes()
    return known


def watch(driver: subprocess.Popen[bytes]) -> tuple[set[str], int]:
    """Processes that knew a secret until the driver ended, and how many workers were seen."""
    told: set[str] = set()
    workers: set[int] = set()
    above = psutil.Process(driver.pid)
    while driver.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in above.children(recursive=True):
                known = what_is_known_to(process)
                is_worker = WORKER.encode() in known.replace(b"\0", b" ")
                if is_worker:
                    workers.add(process.pid)
                if IN_ADDRESS in known or (is_worker and IN_VARIABLE in known):
                    told.add(process.name())
        time.sleep(0.1)
    return told, len(workers)


def ray_logs(since: float) -> list[Path]:
    """Files that Ray has written since then."""
    folders = Path("/tmp/ray").glob("session_2*/logs")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return [file for file in files if file.stat().st_mtime >= since]


def test_no_worker_and_no_file_is_told_a_password(tmp_path: Path, postgresql: PostgresqlServer) -> None:
    study = RealStudy(tmp_path / "study")
    databases = ("watched", "watched-runs")
    trials, runs = (postgresql.create_database(name) for name in databases)
    study.write(tracking={"uri": runs}, storage=trials)
    began = time.time()
    driver = study.start(environment={"MLFLOW_TRACKING_PASSWORD": IN_VARIABLE.decode()})
    told, num_workers = watch(driver)
    assert driver.returncode == EXIT_DONE, study.logged
    assert (told, num_workers > 0) == (set(), True)
    (study.folder / "search.yaml").unlink()  # the user's own
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"results.json", "report.html", "driver.err"} <= {path.name for path in written}
    for secret in (IN_ADDRESS, IN_VARIABLE):
        assert [path for path in (*written, *ray_logs(began)) if secret in path.read_bytes()] == []
        for database in databases:
            assert secret.decode() not in postgresql.dump(database)
