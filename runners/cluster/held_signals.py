"""Signals that come while Ray starts wait until it has: a start that is cut short crashes the process as it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import ray._private.utils

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_held() -> Iterator[None]:
    """The caller's handlers answer the first signal at the end of the context, an impatient second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        handler = handlers[signal.Signals(number)]
        if len(came) > 1 and callable(handler):
            handler(number, frame)

    try:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, hold)
        with _sigterm_left_alone():
            yield
    finally:
        # The C++ part has put handlers of its own below those that Python knows.
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
        if came:
            # Set by that part, which aborts a process that is not gone some seconds after a SIGTERM.
            signal.alarm(0)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _sigterm_left_alone() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it starts, and ends the process on the spot and without a word."""
    taking: Any = getattr(ray._private.utils, "set_sigterm_handler", None)  # No promised interface.
    ray._private.utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = taking
