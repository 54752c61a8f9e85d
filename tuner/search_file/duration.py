"""Lengths of time as people write them."""

from __future__ import annotations

import re

from search_spaces.yaml_words import quoted

_SECONDS_PER_UNIT = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_DURATION = re.compile("".join(rf"(?:({_PART}) ?{unit} ?)?" for unit in _SECONDS_PER_UNIT))
_BARE_NUMBER = re.compile(_PART)
#: Waiting functions of the operating system overflow not far above.
MAX_DURATION_S = 366 * 86400

ALLOWED = "a length of time such as 90s, 10m, 1h30m or 2d"


def parse_duration(text: str) -> float:
    """Seconds in ``90s``, ``10m``, ``1h30m`` or ``2d``.

    Raises:
        ValueError: It is no length of time above zero and up to a year; the message follows the option's name.
    """
    stripped = text.strip()
    if _BARE_NUMBER.fullmatch(stripped):
        raise ValueError(
            f"is {quoted(text)}, a number without a unit; write {stripped}s or {stripped}m if you mean that"
        )
    match = _DURATION.fullmatch(stripped)
    if match is None or not stripped:
        raise ValueError(f"is {quoted(text)}; allowed: {ALLOWED}")
    parts = zip(match.groups(), _SECONDS_PER_UNIT.values(), strict=True)
    seconds = sum(float(number) * factor for number, factor in parts if number is not None)
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"is {quoted(text)}; allowed: {ALLOWED}, above zero and up to 366d")
    return seconds
