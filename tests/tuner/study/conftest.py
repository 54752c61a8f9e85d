from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import simulation
from simulated_study import drive, stored_results
from simulation import points, run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, empty_tracking_database: Path) -> Path:
    """A folder with a whole study in which nothing went wrong; nobody changes it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "runs").mkdir()
    shutil.copy(empty_tracking_database, folder / "runs" / "mlflow.db")
    run(simulation.write_search(folder))
    return folder


@pytest.fixture
def undisturbed(finished: Path) -> list[tuple[str, bool, bool]]:
    """What the simulated study says of each policy when nothing goes wrong."""
    return points(stored_results(finished))


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory, empty_tracking_database: Path) -> Path:
    """A folder with a study whose driver was killed in trial 4; for copies."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "runs").mkdir()
    shutil.copy(empty_tracking_database, folder / "runs" / "mlflow.db")
    driver = drive(simulation.write_search(folder), "--die-in", "4")
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL, said
    return folder


@pytest.fixture
def copy_of_killed(killed: Path, tmp_path: Path) -> Path:
    """The search file of a killed study."""
    shutil.copytree(killed / "runs", tmp_path / "runs")
    return simulation.write_search(tmp_path)
