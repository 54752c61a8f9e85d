"""What tests of studies share: the module `simulation`, and studies with a tracking store of their own."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from runners.replay_runner import ReplayRunner
from tuner import assemble, cli

# Behind everything else, so that no folder of tests shadows a package.
sys.path.append(str(Path(__file__).parent))


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
