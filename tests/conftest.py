"""What every test session needs before torch, Ray or transformers is imported: few threads, no network."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postgresql import PostgresqlServer

sys.path.append(str(Path(__file__).parent / "services"))

_ROOT = Path(__file__).resolve().parents[1]

os.environ.update(
    {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "KINETO_LOG_LEVEL": "6",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
)
# Processes that a test starts import the code under test, wherever the tests were started from.
os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


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
    """MLflow takes seconds to create its tables, so it does it once; for copies."""
    from mlflow_config.settings import tracking_settings
    from mlflow_config.store import TrackingStore

    settings = tracking_settings(output_dir=tmp_path_factory.mktemp("empty-store"), experiment="unused")
    store = TrackingStore(settings)
    store.open()
    store.close()
    assert settings.sqlite_path is not None
    return settings.sqlite_path


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A database server of this session's own."""
    from postgresql import PostgresqlServer, find_programs

    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed: there is no initdb")
    server = PostgresqlServer(programs)
    yield server
    server.close()


@pytest.fixture(scope="session")
def new_postgresql_address(postgresql: PostgresqlServer) -> Callable[[], str]:
    """Makes an empty database and gives its address, with a password."""
    numbers = itertools.count()
    return lambda: postgresql.create_database(f"empty-{next(numbers)}")
