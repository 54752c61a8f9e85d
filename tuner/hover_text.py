"""Text that plotly shows on hover: it reads tags, so what users wrote must not be any."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence

#: Characters of a line: as wide as a phone.
_WIDTH = 44
#: Longer first lines are cut: per-block placements of deep models run over many lines.
_MAX_LENGTH = 5 * _WIDTH


def hover_text(lines: Sequence[str]) -> str:
    """The lines with the first one bold and long ones broken, safe as plotly's markup."""
    first, *rest = lines
    return "<br>".join([f"<b>{_wrapped(shortened(first, _MAX_LENGTH))}</b>", *map(_wrapped, rest)])


def shortened(text: str, length: int = _WIDTH) -> str:
    """The text, or as much of it as the length in characters allows and dots."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _wrapped(text: str) -> str:
    return "<br>".join(html.escape(line, quote=False) for line in textwrap.wrap(text, _WIDTH) or [""])
