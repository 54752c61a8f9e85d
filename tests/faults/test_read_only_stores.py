"""Stores and folders that may be read and not written, as after somebody else's run or on a disk that gave up."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import Driver, Ended
from study_state import Undisturbed, finished_results, state_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NewFolder = Callable[..., Path]
EXIT_DONE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 2, 130


def begin(folder: Path, *options: str) -> Driver:
    driver = Driver(folder, ("run", "search.yaml", *options), trial_s=0.4, obeys_modes=True)
    driver.wait_until_logged("trial   1")
    return driver


def interrupted_study(parent: Path, new_folder: NewFolder) -> Path:
    """A study of which some trials are done."""
    folder = new_folder(parent / "study")
    driver = begin(folder)
    driver.send(signal.SIGINT)
    assert driver.end().code == EXIT_INTERRUPTED
    return folder


def resume(folder: Path) -> Ended:
    return Driver(folder, ("run", "search.yaml", "--resume"), obeys_modes=True).end()


def check_done(ended: Ended) -> None:
    assert "Traceback" not in ended.logged, ended.logged
    assert ended.code == EXIT_DONE, ended


def files_of(database: Path) -> list[Path]:
    return sorted(database.parent.glob(f"{database.name}*"))


def test_a_study_db_that_may_only_be_read_is_waited_for(
    tmp_path: Path, new_folder: NewFolder, undisturbed: Undisturbed
) -> None:
    folder = interrupted_study(tmp_path, new_folder)
    database = folder / "runs" / "simulated" / "study.db"
    kept = finished_results(folder)
    for file in files_of(database):
        file.chmod(0o444)
    driver = Driver(folder, ("run", "search.yaml", "--resume"), obeys_modes=True)
    driver.wait_until_logged("the search waits for it")
    assert "study.db cannot be used: attempt to write a readonly database" in driver.logged()
    assert "give the right to write" in driver.logged()
    for file in files_of(database):
        file.chmod(0o644)
    ended = driver.end()
    check_done(ended)
    assert "study.db works again after" in ended.logged
    assert finished_results(folder).items() >= kept.items()
    assert state_of(folder) == undisturbed.state


def test_an_mlflow_db_that_may_only_be_read_costs_no_trial(
    tmp_path: Path, new_folder: NewFolder, undisturbed: Undisturbed
) -> None:
    folder = interrupted_study(tmp_path, new_folder)
    database = folder / "runs" / "mlflow.db"
    for file in files_of(database):
        file.chmod(0o444)
    ended = resume(folder)
    check_done(ended)
    assert ended.logged.count("MLflow: ") == 1, ended.logged
    assert "attempt to write a readonly database" in ended.logged
    for file in files_of(database):
        file.chmod(0o644)
    check_done(resume(folder))
    assert state_of(folder) == undisturbed.state


def test_a_folder_that_may_only_be_read_is_one_line(tmp_path: Path, new_folder: NewFolder) -> None:
    folder = new_folder(tmp_path / "study")
    (folder / "runs").chmod(0o555)
    ended = Driver(folder, ("run", "search.yaml"), obeys_modes=True).end()
    assert ended.code == EXIT_BAD_INPUT, ended
    assert "Traceback" not in ended.logged
    assert "simulated cannot be written (Permission denied); make room or give the right to write there" in ended.logged


@pytest.fixture
def own_disk() -> Iterator[Path]:
    """A file system that can be made one for reading only."""
    folder = Path(tempfile.mkdtemp(prefix="own-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """As after an error of the disk."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


def test_a_disk_that_may_only_be_read_is_one_line(own_disk: Path, tmp_path: Path, new_folder: NewFolder) -> None:
    folder = new_folder(own_disk / "study")
    with read_only(own_disk):
        ended = Driver(folder, ("run", "search.yaml"), output=tmp_path / "driver").end()
    assert ended.code == EXIT_BAD_INPUT, ended
    assert "cannot be written (Read-only file system); make room or give the right to write there" in ended.logged
