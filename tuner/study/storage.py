"""Where a study keeps its trials, and the one place where that store's errors become a line for the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from mlflow_config.database_errors import causes, driver_error
from tuner.sampling.patience import Patience
from tuner.search_file.url import redact_url
from tuner.user_error import UserError

_MAX_REASON_LENGTH = 200
#: Seconds that a search waits for its store. A server takes a minute or two to start again, a person more to make room.
_PATIENCE_S = 600.0


class StudyStorageError(UserError):
    """The store of trials cannot be used; the message is one line for the user and holds no credentials."""


@dataclass(frozen=True)
class StudyStorage:
    """The address of Optuna's store, and what to say of it when it does not work.

    Attributes:
        shown: Begins a sentence that says what is wrong with it.
        where: The same as a name.
        advice: What to do before a search.
        remedy: What to do while one waits for it.
    """

    url: str
    shown: str
    advice: str
    where: str
    remedy: str

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what Optuna and its database raise within the context into `StudyStorageError`."""
        try:
            yield
        except (SQLAlchemyError, StorageInternalError, ImportError) as error:
            raise StudyStorageError(f"{self.shown} cannot be used: {self._reason(error)}; {self.advice}") from error

    def patience(self, sleep: Callable[[float], None]) -> Patience:
        """For a store in use: whoever waits for it loses nothing. ``sleep`` waits; what it raises ends the waiting."""
        return Patience(_PATIENCE_S, where=self.where, describe=self._reason, advice=self.remedy, sleep=sleep)

    def _reason(self, error: BaseException) -> str:
        missing = next((cause.name for cause in causes(error) if isinstance(cause, ModuleNotFoundError)), None)
        if missing is not None:
            return f"the package {missing}, which this kind of database needs, is not installed"
        # The driver's own words: what wraps them adds the statement and its values, or says nothing.
        said = driver_error(error) or error
        text = str(said).replace(self.url, redact_url(self.url))
        return " ".join(text.split())[:_MAX_REASON_LENGTH].rstrip(".")


def study_storage(named: str | None, database: Path) -> StudyStorage:
    """The store that the user named, or the database file in the study's folder."""
    if named is None:
        return StudyStorage(
            url=f"sqlite:///{database.resolve()}",
            shown=str(database),
            advice="free space on its disk or restore the file from a copy; else start anew under another `study:`",
            where=str(database),
            remedy="end the program that holds it, make room on its disk or give the right to write; Ctrl-C stops",
        )
    return StudyStorage(
        url=named,
        shown=f"storage is {redact_url(named)}, which",
        advice="a database that answers, with Optuna's tables or none, is needed; correct the address, or leave it out "
        "to keep trials in the study's folder",
        where=f"storage {redact_url(named)}",
        remedy="start the database again or mend the way to it; Ctrl-C stops the search",
    )
