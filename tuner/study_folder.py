"""The folder of one study: its files by name, and the lock that only one driver holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from search_spaces.whole_file import write_whole
from tuner.user_error import UserError


class StudyBusyError(UserError):
    """Another driver runs this study now; the message is one line for the user."""


class StudyFolder:
    """Paths below ``output_dir/STUDY``. Nothing is created before it is needed.

    Args:
        output_dir: Folder of all studies.
        study: Name of the study; it was checked to be one path component.
    """

    def __init__(self, output_dir: Path, study: str) -> None:
        self.path = output_dir / study
        self.search_file = self.path / "search.yaml"
        self.database = self.path / "study.db"
        self.results_file = self.path / "results.json"
        self.policy_file = self.path / "policy.yaml"
        self.report_file = self.path / "report.html"
        self.log_file = self.path / "trials.log"
        self._lock_file = self.path / ".lock"

    def exists(self) -> bool:
        """True where a study of this name has begun."""
        return self.search_file.exists() or self.database.exists()

    def write(self, path: Path, text: str) -> None:
        """Writes a file whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within the context no other driver on this machine can hold the study; the system frees it at any death.

        Raises:
            StudyBusyError: Another one holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock_file.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise StudyBusyError(
                    f"{self.path} is in use by process {lock.read().strip() or 'unknown'}, which runs this study now; "
                    "wait for it, stop it, or give this search another study name"
                ) from None
            lock.seek(0)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def append_log(self, text: str) -> None:
        """Adds the long form of what went wrong in a trial to trials.log."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("a", encoding="utf-8") as log:
            log.write(text)
