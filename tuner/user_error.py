"""The kind of error that the user can put right: complete messages, one per line, and never a trace."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """Something in what the user gave cannot be used.

    Attributes:
        lines: Complete messages: where, what was read, what is allowed, what to do.
    """

    def __init__(self, message: str | Sequence[str]) -> None:
        self.lines = (message,) if isinstance(message, str) else tuple(message)
        super().__init__("\n".join(self.lines))


class FailedError(UserError):
    """A command that could not do what it was asked, through no mistake in what the user gave."""
