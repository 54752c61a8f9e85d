"""What tests of studies share: the module `simulation`, and a tracking store that need not be created each time."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mlflow_config.settings import tracking_settings
from mlflow_config.store import TrackingStore
from runners.replay_runner import ReplayRunner
from tuner import assemble, cli

# Behind everything else, so that no folder of tests shadows a package.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _environment_as_before() -> Iterator[None]:
    """Opening a store sets MLflow's variables for the process; give them back."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        if name.startswith("MLFLOW_"):
            del os.environ[name]


@pytest.fixture(scope="session")
def empty_tracking_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to create its tables, so it does it once."""
    settings = tracking_settings(output_dir=tmp_path_factory.mktemp("empty-store"), experiment="unused")
    store = TrackingStore(settings)
    store.open()
    store.close()
    assert settings.sqlite_path is not None
    return settings.sqlite_path


@pytest.fixture
def tracking_database(tmp_path: Path, empty_tracking_database: Path) -> Path:
    """MLflow's file for studies below ``tmp_path/runs``."""
    (tmp_path / "runs").mkdir()
    return Path(shutil.copy(empty_tracking_database, tmp_path / "runs" / "mlflow.db"))


@pytest.fixture
def write_search(tmp_path: Path, tracking_database: Path) -> Callable[..., Path]:
    """Writes the simulated study's search file below ``tmp_path``; see ``simulation.write_search``."""
    import simulation

    def write(**changes: Any) -> Path:
        return simulation.write_search(tmp_path, **changes)

    return write


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    names = (None, "tuner", "runners", "mlflow_config")
    levels = {name: logging.getLogger(name).level for name in names}
    handlers = list(logging.getLogger().handlers)
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, _logging_as_before: None) -> Callable[..., Result]:
    """The command line in this process, on a simulated device; what is no clean end of a program is raised."""
    import simulation

    def run(*arguments: object, runner: ReplayRunner | None = None) -> Result:
        monkeypatch.setattr(assemble, "ray_runner", lambda config: runner or simulation.replay())
        result = CliRunner().invoke(cli.app, list(map(str, arguments)))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
