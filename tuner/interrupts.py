"""Ctrl-C and SIGTERM during a search: taken at once where it waits, and held back while it keeps what was measured."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Turns both signals into `KeyboardInterrupt` while it is entered. Outside of the main thread it does nothing."""

    def __init__(self) -> None:
        self._is_held = False
        self._is_refused = False
        self._is_pending = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Within the context a signal is ours."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the context the first signal waits for `raise_if_pending`; an impatient second one does not."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        self.raise_if_pending()

    def raise_if_pending(self) -> None:
        """To be called where the search can be left without losing a result.

        Raises:
            KeyboardInterrupt: A signal has come.
        """
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def refuse(self) -> None:
        """From now on signals change nothing: the search is over, and what it measured is being written."""
        self._is_refused = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._is_refused:
            return
        if self._is_held and not self._is_pending:
            self._is_pending = True
            return
        self._is_pending = False
        raise KeyboardInterrupt
