"""A real, empty tracking store for each test; creating one takes seconds, so it is created once and copied."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlflow_config.recorder import StudyRecorder
from mlflow_config.settings import TrackingSettings, tracking_settings
from mlflow_config.store import TrackingStore

if TYPE_CHECKING:
    from postgresql import PostgresqlServer


@pytest.fixture(scope="session")
def new_server_address(postgresql: PostgresqlServer) -> Callable[[], str]:
    """Makes a database with MLflow's tables on a server and gives its address."""
    address = postgresql.create_database("tracking")
    store = TrackingStore(tracking_settings(output_dir=Path("unused"), experiment="unused", uri=address))
    store.open()
    store.close()
    numbers = itertools.count()

    def make() -> str:
        postgresql.cut_connections()  # A template must have none.
        return postgresql.create_database(f"tracking-{next(numbers)}", template="tracking")

    return make


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def settings(request: pytest.FixtureRequest, tmp_path: Path, empty_tracking_database: Path) -> TrackingSettings:
    """An empty store: one file, or a database server's, which keeps artifacts below ``tmp_path`` as well."""
    uri = request.getfixturevalue("new_server_address")() if request.param == "postgresql" else None
    made = tracking_settings(output_dir=tmp_path, experiment="a-model", uri=uri)
    if made.sqlite_path is not None:
        shutil.copy(empty_tracking_database, made.sqlite_path)
    return made


@pytest.fixture
def open_recorder(settings: TrackingSettings) -> Iterator[Callable[..., StudyRecorder]]:
    """Opens a recorder as one driver after another would; all are closed at the end."""
    opened: list[StudyRecorder] = []

    def open_one(study_id: str = "id-1", *, study: str = "a-study", patience_s: float = 60.0) -> StudyRecorder:
        recorder = StudyRecorder(settings, study=study, study_id=study_id, patience_s=patience_s)
        opened.append(recorder)
        recorder.open()
        return recorder

    yield open_one
    for recorder in opened:
        recorder.close()
