"""The one error of this room."""

from __future__ import annotations


class TrackingError(Exception):
    """Results could not be recorded or shown; the message is one line for the user.

    A finished trial is never lost by it: what could not be recorded can be recorded again later.
    """
