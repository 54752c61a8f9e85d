"""The known name that a mistyped one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: What people call things that have another name here.
_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "ascend": "npu"}


def nearest_name(wrong: str, known: Iterable[str], *, similarity: float = 0.55) -> str | None:
    """The known name most like the wrong one, capitals aside; None where none reaches the similarity (0..1)."""
    by_lower = {name.lower(): name for name in known}
    meant = by_lower.get(_OTHER_NAMES.get(wrong.lower(), ""))
    if meant is not None:
        return meant
    near = difflib.get_close_matches(wrong.lower(), by_lower, n=1, cutoff=similarity)
    return by_lower[near[0]] if near else None


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of a message, ``; did you mean X?``; empty where nothing is like it."""
    near = nearest_name(wrong, known)
    return "" if near is None else f"; did you mean {near}?"
