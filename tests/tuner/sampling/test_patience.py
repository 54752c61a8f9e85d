from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy
from optuna.exceptions import DuplicatedStudyError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError

from mlflow_config.database_errors import is_locked
from tuner.sampling.patience import Patience, may_pass

FOREVER_S = 3600.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    """A SQLite file that does not wait for locks by itself."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'x.db'}", connect_args={"timeout": 0})
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE numbers (number INTEGER)"))
    yield engine
    engine.dispose()


def insert(database: sqlalchemy.Engine) -> Callable[[bool], bool]:
    def operation(is_retry: bool) -> bool:
        with database.begin() as connection:
            connection.execute(sqlalchemy.text("INSERT INTO numbers VALUES (1)"))
        return is_retry

    return operation


def count(database: sqlalchemy.Engine) -> int:
    with database.begin() as connection:
        return int(connection.execute(sqlalchemy.text("SELECT count(*) FROM numbers")).scalar_one())


@contextlib.contextmanager
def locked(database: sqlalchemy.Engine) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(str(database.url.database))) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield holder


def test_a_lock_is_waited_for_and_said(database: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture) -> None:
    waits: list[float] = []
    with locked(database) as holder, caplog.at_level(logging.WARNING):

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                holder.rollback()

        patience = Patience(FOREVER_S, where="runs/x/study.db", sleep=sleep, describe=str, advice="be patient")
        assert patience.call(insert(database)) is True, "the operation is told that it was tried before"
    assert count(database) == 1
    waiting, works = caplog.messages
    assert waiting.startswith("runs/x/study.db cannot be used: (sqlite3.OperationalError) database is locked")
    assert waiting.endswith("the search waits for it, 60 min at most, and loses nothing; be patient")
    assert works == "runs/x/study.db works again after 0 s"


def test_what_works_says_nothing(database: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture) -> None:
    assert Patience(FOREVER_S).call(insert(database)) is False
    assert caplog.messages == []


def test_it_ends_and_is_not_had_again_before_something_works(database: sqlalchemy.Engine) -> None:
    waits: list[float] = []
    patience = Patience(0.2, sleep=waits.append)
    with locked(database):
        with pytest.raises(OperationalError, match="database is locked"):
            patience.call(insert(database))
        num_waits = len(waits)
        assert num_waits > 0
        patience.seconds = FOREVER_S
        with pytest.raises(OperationalError, match="database is locked"):
            patience.call(insert(database))
        assert len(waits) == num_waits
    patience.call(insert(database))
    patience.seconds = 0.2
    with locked(database), pytest.raises(OperationalError, match="database is locked"):
        patience.call(insert(database))
    assert len(waits) > num_waits


def test_a_refusal_after_a_wait_is_an_answer_and_each_try_has_its_own_connection(
    database: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    def operation(is_retry: bool) -> None:
        tries.append("tried")
        if len(tries) < 5:
            insert(database)(is_retry)
        raise DuplicatedStudyError("the name is taken")

    with locked(database) as holder, caplog.at_level(logging.WARNING):

        def sleep(seconds: float) -> None:
            if len(tries) == 3:
                holder.rollback()

        patience = Patience(FOREVER_S, where="study.db", sleep=sleep, reconnect=lambda: tries.append("connected"))
        with pytest.raises(DuplicatedStudyError, match="the name is taken"):
            patience.call(operation)
    assert tries == ["tried", "connected", "tried", "connected", "tried"]
    assert caplog.messages[-1].startswith("study.db works again after ")


def test_whoever_ends_the_wait_is_not_kept_waiting_again(database: sqlalchemy.Engine) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    patience = Patience(FOREVER_S, sleep=sleep)
    with locked(database):
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            patience.call(insert(database))
        with pytest.raises(OperationalError, match="database is locked"):
            patience.call(insert(database))


def test_what_will_never_work_is_tried_once(database: sqlalchemy.Engine) -> None:
    def operation(is_retry: bool) -> None:
        with database.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT * FROM nowhere"))

    with pytest.raises(OperationalError, match="no such table"):
        Patience(FOREVER_S, sleep=lambda seconds: pytest.fail("it waited")).call(operation)


class SaidError(Exception):
    """A server's error as its driver raises it."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("the server's words")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    "kind, sqlstate, is_invalidated, expected",
    [
        (OperationalError, None, False, True),
        (InterfaceError, None, False, True),
        (OperationalError, "57P01", True, True),
        (OperationalError, "57P03", False, True),
        (OperationalError, "53100", False, True),
        (DBAPIError, "25006", False, True),
        (ProgrammingError, "42P01", False, False),
        (ProgrammingError, None, True, True),
        (OperationalError, "28P01", False, False),
    ],
    ids=[
        "no connection",
        "connection is closed",
        "administrator cut it",
        "server is starting",
        "server's disk is full",
        "server takes no writes",
        "no such table",
        "connection was lost",
        "wrong password",
    ],
)
def test_which_errors_of_a_server_pass(
    kind: type[DBAPIError], sqlstate: str | None, is_invalidated: bool, expected: bool
) -> None:
    error = kind("SELECT 1", None, SaidError(sqlstate), connection_invalidated=is_invalidated)
    assert may_pass(error) is expected
    assert not is_locked(error)
