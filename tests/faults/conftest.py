"""Modules of this folder, and studies in which nothing went wrong, to compare with."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from study_state import Undisturbed

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "tuner"):
    sys.path.append(str(folder))


@pytest.fixture(scope="session")
def new_folder(empty_tracking_database: Path) -> Callable[[Path], Path]:
    """Prepares a folder with the search file, beside it MLflow's tables."""
    import simulation

    def prepare(folder: Path, **changes: object) -> Path:
        (folder / "runs").mkdir(parents=True)
        shutil.copy(empty_tracking_database, folder / "runs" / "mlflow.db")
        simulation.write_search(folder, **changes)
        return folder

    return prepare


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, new_folder: Callable[[Path], Path]) -> Undisturbed:
    from drivers import Driver
    from study_state import Undisturbed, state_of

    folder = new_folder(tmp_path_factory.mktemp("undisturbed") / "study")
    counts_file = folder / "counts.json"
    ended = Driver(folder, ("run", "search.yaml"), counts_file=counts_file).end()
    assert ended.code == 0, ended.logged
    return Undisturbed(state_of(folder), json.loads(counts_file.read_text()))
