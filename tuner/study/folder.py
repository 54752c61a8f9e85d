"""The folder of one study: its files by name, and the lock that only one driver holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from search_spaces.visible_text import visible
from search_spaces.whole_file import remove_leftovers, write_whole
from tuner.user_error import UserError


class StudyBusyError(UserError):
    """Another driver runs this study now; the message is one line for the user."""


class StudyFolderError(UserError):
    """The study's folder cannot be written; the message is one line for the user."""


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
        return any(file.exists() for file in (self.search_file, self.database, self.results_file))

    def write(self, path: Path, text: str) -> None:
        """Writes a file whole or not at all.

        Raises:
            StudyFolderError: The folder cannot be written to, its disk is full, or something in it is a symbolic link.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def forget_beginning(self) -> None:
        """Removes the files of a study that was refused before it had a trial, so that its name is free."""
        for path in (self.search_file, self.results_file):
            self.remove(path)

    def raise_if_busy(self) -> None:
        """Says what `locked` would say, and leaves no trace where there is no such study.

        Raises:
            StudyBusyError: Another driver holds the study.
        """
        if self._lock_file.exists():
            with self.locked():
                pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within the context no other driver on this machine can hold the study; the system frees it at any death.

        Half-written files of a driver that was killed are removed, and in the end a folder that holds nothing but the
        lock.

        Raises:
            StudyBusyError: Another one holds it.
            StudyFolderError: The folder cannot be written to.
        """
        with self._open_lock() as lock:
            lock.seek(0)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            with self._writing():
                remove_leftovers(self.path)
            try:
                yield
            finally:
                if os.listdir(self.path) == [self._lock_file.name]:
                    self._lock_file.unlink()
                    with contextlib.suppress(OSError):  # another driver was about to use it
                        self.path.rmdir()

    def append_log(self, text: str) -> None:
        """Adds the long form of what went wrong in a trial to trials.log, which people look at in a terminal.

        Raises:
            StudyFolderError: The folder cannot be written to, its disk is full, or something in it is a symbolic link.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("a", encoding="utf-8") as log:
                log.write(visible(text))

    @contextmanager
    def _open_lock(self) -> Iterator[TextIO]:
        while True:
            with self._writing():
                self.path.mkdir(parents=True, exist_ok=True)
                lock = self._lock_file.open("a+")
            with lock:
                with self._writing():
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        raise self._busy(lock) from None
                if self._is_lock_file(lock):
                    yield lock
                    return

    def _is_lock_file(self, lock: TextIO) -> bool:
        """False where its last holder removed the file after it was opened here: a lock on it would bind nobody."""
        try:
            return os.path.samestat(os.fstat(lock.fileno()), self._lock_file.stat())
        except FileNotFoundError:
            return False

    def _busy(self, lock: TextIO) -> StudyBusyError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        return StudyBusyError(
            f"{self.path} is in use by process {holder}, which runs this study now; wait for it, stop it, or give this "
            "search another study name"
        )

    def _refuse_links(self) -> None:
        """Where others may write to the output folder, a link of theirs would send what is written anywhere."""
        for path in (path for path in vars(self).values() if isinstance(path, Path)):
            if path.is_symlink():
                raise StudyFolderError(
                    f"{path} is a symbolic link to {os.readlink(path)}, and studies write to no links; remove it, or "
                    "name the folder that it leads to by output_dir"
                )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._refuse_links()
        try:
            yield
        except OSError as error:
            raise StudyFolderError(
                f"{self.path} cannot be written ({error.strerror}); make room or give the right to write there, or "
                "name another folder by output_dir"
            ) from error
