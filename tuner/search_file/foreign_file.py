"""Search files that are the config of another program, which one line says better than one for each of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.yaml_words import quoted
from tuner.search_file.schema import known_keys, required_below
from tuner.search_file.suggestion import nearest_name

#: Keys without a meaning here from which on a file that has none of ours that are needed is another program's.
_MIN_UNKNOWN_KEYS = 3
_MAX_SHOWN = 3
#: From 0 to 1; a key that is more like one of ours is a mistake in writing.
_SIMILARITY = 0.8


def foreign_file_text(data: Mapping[str, Any]) -> str | None:
    """What to say of a file that is the config of another program; None where it is one for a search, or meant as one.

    Args:
        data: The whole file.
    """
    needed = list(dict.fromkeys(str(path[0]) for path in required_below(())))
    unknown = [key for key in data if key not in known_keys(())]
    ours = any(key.partition(".")[0] in needed or nearest_name(key, needed, similarity=_SIMILARITY) for key in data)
    nested = any(isinstance(value, dict) and not value.keys().isdisjoint(needed) for value in data.values())
    if ours or nested or len(unknown) < _MIN_UNKNOWN_KEYS:
        return None
    shown = ", ".join(quoted(key) for key in unknown[:_MAX_SHOWN])
    return (
        f"is no search file: {len(unknown)} of its keys are unknown here ({shown}, ...), and {', '.join(needed)} are "
        "missing, which each search file has; write one beside it, and `tune export STUDY --format F --into FILE` sets "
        "what was found in a training config"
    )
