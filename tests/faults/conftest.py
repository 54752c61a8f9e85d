"""Modules of this folder, and studies in which nothing went wrong, to compare with."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlflow_config.settings import tracking_settings
from mlflow_config.store import TrackingStore

if TYPE_CHECKING:
    from study_state import Undisturbed

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "tuner"):
    sys.path.append(str(folder))


@pytest.fixture(scope="session")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Prepares a folder with the search file, beside it MLflow's tables, which take seconds to make."""
    import simulation

    settings = tracking_settings(output_dir=tmp_path_factory.mktemp("empty-store"), experiment="unused")
    store = TrackingStore(settings)
    store.open()
    store.close()
    assert settings.sqlite_path is not None
    empty = settings.sqlite_path

    def prepare(folder: Path, **changes: object) -> Path:
        (folder / "runs").mkdir(parents=True)
        shutil.copy(empty, folder / "runs" / "mlflow.db")
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
