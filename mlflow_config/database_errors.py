"""What a database driver said, whatever wraps it, and whether the same call may succeed in a moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, the newest first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def driver_error(error: BaseException) -> BaseException | None:
    """What the database driver itself said, if it is about the database."""
    # SQLAlchemy takes a while to load, and is not needed where nothing went wrong.
    from sqlalchemy.exc import DBAPIError

    for cause in causes(error):
        if isinstance(cause, sqlite3.Error):
            return cause
        if isinstance(cause, DBAPIError) and cause.orig is not None:
            return cause.orig
    return None


def is_locked(error: BaseException) -> bool:
    """True where another process holds the SQLite file for the moment."""
    said = driver_error(error)
    if not isinstance(said, sqlite3.OperationalError):
        return False
    # Python 3.10 does not name SQLite's errors: there, a full disk is waited for as well.
    return getattr(said, "sqlite_errorname", "SQLITE_BUSY").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
