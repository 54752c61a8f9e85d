"""Waits for a database that is out of reach for a while, so that what was measured is not lost for it."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from optuna.exceptions import OptunaError, StorageInternalError
from sqlalchemy.exc import DBAPIError

from mlflow_config.database_errors import causes, driver_error, is_locked

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two tries. SQLite itself waits five seconds for a lock in each of them.
_PAUSE_S = 0.5
#: What passes by itself, or what a user mends while the search waits: no room, no right, no disk.
_SQLITE_MAY_PASS = ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")
#: A server's words for the same beside a lost connection: no room, too many connections, being started or stopped, not
#: the primary one now (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_SQLSTATE_MAY_PASS = ("53", "57P", "25006", "40", "55P03", "08")


def may_pass(error: BaseException) -> bool:
    """True where the same call may succeed later without a change of what is asked."""
    if is_locked(error):
        return True
    said = driver_error(error)
    if isinstance(said, sqlite3.OperationalError):
        # Python 3.10 does not name SQLite's errors: there, all of this kind are waited for.
        return getattr(said, "sqlite_errorname", "SQLITE_FULL").startswith(_SQLITE_MAY_PASS)
    wrapped = [cause for cause in causes(error) if isinstance(cause, DBAPIError)]
    if any(cause.connection_invalidated for cause in wrapped):
        return True
    # A connection that could not be made has no code of the server's.
    state = getattr(said, "sqlstate", None) or getattr(said, "pgcode", None)
    if state is None:
        return any(type(cause).__name__ in ("OperationalError", "InterfaceError") for cause in wrapped)
    return str(state).startswith(_SQLSTATE_MAY_PASS)


@dataclass
class Patience:
    """Asks a database again while it is out of reach.

    Once it was given up, the calls that follow do not wait again until one succeeds.

    Attributes:
        seconds: How long a call waits at most.
        where: The database as the user knows it.
        describe: One line that says why it does not work.
        advice: What the user can do meanwhile.
        sleep: Waits that many seconds; what it raises ends the waiting.
        is_worth_it: Whether to wait for what was raised.
        reconnect: Called before each further try.
    """

    seconds: float = 0.0
    where: str = "the database"
    describe: Callable[[BaseException], str] = str
    advice: str = ""
    sleep: Callable[[float], None] = time.sleep
    is_worth_it: Callable[[BaseException], bool] = may_pass
    reconnect: Callable[[], None] = lambda: None
    _has_given_up: bool = field(default=False, init=False)

    def call(self, operation: Callable[[bool], T]) -> T:
        """What the operation gives back; what it raises, where that is not worth waiting for or the time is over.

        Args:
            operation: Is told whether it was tried before: its outcome is not known then.
        """
        start = time.monotonic()
        deadline = start + (0.0 if self._has_given_up else self.seconds)
        is_waiting = False
        while True:
            try:
                answer = operation(is_waiting)
            except (DBAPIError, StorageInternalError) as error:
                if not self.is_worth_it(error) or time.monotonic() >= deadline:
                    self._has_given_up = True
                    raise
                if not is_waiting:
                    self._say_waiting(error)
                is_waiting = True
            except OptunaError:
                # An answer as well, say that a name is taken.
                self._say_answered(start if is_waiting else None)
                raise
            else:
                self._say_answered(start if is_waiting else None)
                return answer
            self._pause()
            self.reconnect()

    def _pause(self) -> None:
        try:
            self.sleep(_PAUSE_S)
        except BaseException:
            self._has_given_up = True
            raise

    def _say_answered(self, waiting_since: float | None) -> None:
        self._has_given_up = False
        if waiting_since is not None:
            logger.warning("%s works again after %.0f s", self.where, time.monotonic() - waiting_since)

    def _say_waiting(self, error: BaseException) -> None:
        logger.warning(
            "%s cannot be used: %s; the search waits for it, %.0f min at most, and loses nothing; %s",
            self.where,
            self.describe(error),
            self.seconds / 60,
            self.advice,
        )
