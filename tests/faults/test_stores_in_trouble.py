"""Stores locked, full or gone while a search runs: it waits or says why it ends, and loses nothing."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import Driver, Ended
from study_state import Undisturbed, finished_results, state_of

pytestmark = pytest.mark.timeout(3600)

EXIT_DONE, EXIT_FAILED = 0, 1
#: Longer than SQLite itself waits for a lock.
LONG_S = 8.0
NewFolder = Callable[..., Path]


def begin(folder: Path, *options: str) -> Driver:
    """A driver in the middle of its search, with trials that take a while."""
    driver = Driver(folder, ("run", "search.yaml", *options), trial_s=0.4)
    driver.wait_until_logged("trial   1")
    return driver


def resume(folder: Path) -> Ended:
    return Driver(folder, ("run", "search.yaml", "--resume")).end()


def check_done(ended: Ended) -> None:
    assert "Traceback" not in ended.logged, ended.logged
    assert ended.code == EXIT_DONE, ended


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.rollback()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [LONG_S, 30.0])
def test_a_locked_study_db_delays(
    tmp_path: Path, new_folder: NewFolder, undisturbed: Undisturbed, seconds: float
) -> None:
    folder = new_folder(tmp_path / "study")
    driver = begin(folder)
    with locked(folder / "runs" / "simulated" / "study.db"):
        time.sleep(seconds)
    ended = driver.end()
    check_done(ended)
    assert "study.db cannot be used: database is locked; the search waits for it, 10 min at most" in ended.logged
    assert ended.logged.count("study.db works again after") == 1
    assert state_of(folder) == undisturbed.state


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [LONG_S, 30.0])
def test_a_locked_mlflow_db_is_not_even_waited_for(
    tmp_path: Path, new_folder: NewFolder, undisturbed: Undisturbed, seconds: float
) -> None:
    folder = new_folder(tmp_path / "study")
    driver = begin(folder)
    with locked(folder / "runs" / "mlflow.db"):
        time.sleep(seconds)
        assert len(finished_results(folder)) > 2
    check_done(driver.end())
    assert state_of(folder) == undisturbed.state


@pytest.mark.slow
def test_a_study_db_that_is_removed_ends_the_search_and_comes_back(
    tmp_path: Path, new_folder: NewFolder, undisturbed: Undisturbed
) -> None:
    folder = new_folder(tmp_path / "study")
    driver = begin(folder)
    for path in (folder / "runs" / "simulated").glob("study.db*"):
        path.unlink()
    ended = driver.end()
    assert ended.code == EXIT_FAILED, ended
    assert "Traceback" not in ended.logged
    assert "study.db cannot be used: the file was removed or replaced while it was in use" in ended.said
    resumed = resume(folder)
    check_done(resumed)
    assert "study.db has no trials of study simulated any more" in resumed.logged
    assert state_of(folder) == undisturbed.state


@pytest.mark.slow
def test_an_mlflow_db_that_is_removed_costs_no_trial(
    tmp_path: Path, new_folder: NewFolder, undisturbed: Undisturbed
) -> None:
    folder = new_folder(tmp_path / "study")
    driver = begin(folder)
    for path in (folder / "runs").glob("mlflow.db*"):
        path.unlink()
    check_done(driver.end())
    check_done(resume(folder))
    assert state_of(folder) == undisturbed.state


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 64 MiB of its own."""
    folder = Path(tempfile.mkdtemp(prefix="small-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def fill(disk: Path) -> Path:
    """Takes all room there is."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@pytest.mark.slow
def test_a_full_disk_is_waited_for(small_disk: Path, new_folder: NewFolder, undisturbed: Undisturbed) -> None:
    folder = new_folder(small_disk / "study")
    driver = begin(folder)
    filler = fill(small_disk)
    time.sleep(LONG_S)
    kept = finished_results(folder)
    filler.unlink()
    ended = driver.end()
    check_done(ended)
    assert "study.db cannot be used: database or disk is full; the search waits for it" in ended.logged
    assert finished_results(folder).items() >= kept.items()
    assert state_of(folder) == undisturbed.state


@pytest.mark.slow
def test_whoever_has_no_room_to_make_can_stop_the_wait(
    small_disk: Path, new_folder: NewFolder, undisturbed: Undisturbed
) -> None:
    folder = new_folder(small_disk / "study")
    driver = begin(folder)
    filler = fill(small_disk)
    driver.wait_until_logged("the search waits for it")
    kept = finished_results(folder)
    driver.send(signal.SIGTERM)
    ended = driver.end()
    assert "Traceback" not in ended.logged, ended.logged
    assert ended.code == EXIT_FAILED, ended
    assert "cannot be written (No space left on device); make room" in ended.logged
    filler.unlink()
    check_done(resume(folder))
    assert finished_results(folder).items() >= kept.items()
    assert state_of(folder) == undisturbed.state
