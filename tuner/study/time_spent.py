"""What the time of a session went into, since `search.time_limit` is that of trials and not all a session takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TimeSpent:
    """Adds up wall time by what it was spent on.

    Args:
        start_s: When the session began, on the monotonic clock.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._spent_s: dict[str, float] = {}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Counts what runs within."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            self._spent_s[what] = self._spent_s.get(what, 0.0) + time.monotonic() - start_s

    def text(self) -> str:
        """One line: all of it, then each part in the order in which it began, and the rest."""
        total_s = time.monotonic() - self._start_s
        rest_s = total_s - sum(self._spent_s.values())
        parts = [*self._spent_s.items(), ("start, model and files", rest_s)]
        return f"took {total_s:.0f} s: " + ", ".join(f"{what} {spent_s:.0f} s" for what, spent_s in parts)
