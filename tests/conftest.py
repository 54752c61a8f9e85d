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
