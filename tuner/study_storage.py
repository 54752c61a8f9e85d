"""Where a study keeps its trials, and the one place where that store's errors become a line for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tuner.config_url import redact_url
from tuner.user_error import UserError

_MAX_REASON_LENGTH = 200


class StudyStorageError(UserError):
    """The store of trials cannot be used; the message is one line for the user and holds no credentials."""


@dataclass(frozen=True)
class StudyStorage:
    """The address of Optuna's store, and what to say of it when it does not work."""

    url: str
    shown: str
    advice: str

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what Optuna and its database raise within the context into `StudyStorageError`."""
        try:
            yield
        except (SQLAlchemyError, StorageInternalError, ImportError) as error:
            raise StudyStorageError(f"{self.shown} cannot be used: {self._reason(error)}; {self.advice}") from error

    def _reason(self, error: BaseException) -> str:
        causes = list(_causes(error))
        missing = next((cause.name for cause in causes if isinstance(cause, ModuleNotFoundError)), None)
        if missing is not None:
            return f"the package {missing}, which this kind of database needs, is not installed"
        # The driver's own words: what wraps them adds the statement and its values, or says nothing.
        said = next((cause.orig for cause in causes if isinstance(cause, DBAPIError) and cause.orig is not None), error)
        text = str(said).replace(self.url, redact_url(self.url))
        return " ".join(text.split())[:_MAX_REASON_LENGTH].rstrip(".")


def study_storage(named: str | None, database: Path) -> StudyStorage:
    """The store that the user named, or the database file in the study's folder."""
    if named is None:
        return StudyStorage(
            url=f"sqlite:///{database.resolve()}",
            shown=str(database),
            advice="free space on its disk or restore the file from a copy; else start anew under another `study:`",
        )
    return StudyStorage(
        url=named,
        shown=f"storage is {redact_url(named)}, which",
        advice="a database that answers, with Optuna's tables or none, is needed; correct the address, or leave it out "
        "to keep trials in the study's folder",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
