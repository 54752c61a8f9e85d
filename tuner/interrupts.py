"""Ctrl-C, SIGTERM and a terminal that closes: taken at once where a search waits, and held back while it keeps what
was measured."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds until a signal that came during a wait is looked at.
_LOOK_INTERVAL_S = 0.1


class Interrupts:
    """Turns these signals into `KeyboardInterrupt` while it is entered. Outside of the main thread it does nothing."""

    def __init__(self) -> None:
        self._is_held = False
        self._is_refused = False
        self._is_pending = False
        # A terminal that has closed does not even say any more that it was one.
        self._terminal = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Within the context a signal is ours; a hang-up that is ignored, as under `nohup`, stays so. May be nested."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        taken = [n for n in _SIGNALS if not (n is signal.SIGHUP and signal.getsignal(n) is signal.SIG_IGN)]
        before = {number: signal.signal(number, self._take) for number in taken}
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
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Waits, but not on after a signal.

        Raises:
            KeyboardInterrupt: A signal has come.
        """
        end = time.monotonic() + seconds
        while True:
            self.raise_if_pending()
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(remaining, _LOOK_INTERVAL_S))

    def refuse(self) -> None:
        """From now on signals change nothing: the search is over, and what it measured is being written."""
        self._is_refused = True
        self._is_pending = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._leave_terminal()
        if self._is_refused:
            return
        is_first = not self._is_pending
        # And stays it when raised: Python drops what is raised inside a finalizer, and the next look finds it.
        self._is_pending = True
        if not (self._is_held and is_first):
            raise KeyboardInterrupt

    def _leave_terminal(self) -> None:
        """Output that the closed terminal would have shown goes nowhere, instead of ending whoever writes it."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in self._terminal:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
