"""A wrong name, answered with the known ones that look like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_LISTED = 12


def known_names(wrong: str, known: Iterable[str]) -> str:
    """``did you mean a, b?`` where some are near; else the known names, or the first of many."""
    names = sorted(known)
    near = difflib.get_close_matches(wrong, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {', '.join(near)}?"
    if not names:
        return "none is known"
    rest = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"known: {', '.join(names[:_MAX_LISTED])}{rest}"
