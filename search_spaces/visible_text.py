"""Text that may come from anyone, for terminals. Loads nothing, since every command waits for it."""

from __future__ import annotations

import re


def visible(text: str) -> str:
    """The text with every character written as an escape that moves a terminal's cursor, colours or reorders text.

    Line breaks and tabs stay. The escapes are those of JSON, so that a JSON document remains the same document.
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


#: Control characters, those that turn the direction of writing, separators of lines, halves of surrogate pairs.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
