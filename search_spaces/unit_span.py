"""A unit that begins or ends inside a module: ``mlp..mlp.down``, and several such at once, joined with ``; ``.

Before the dots stands the head, after them the tails, paths of modules below the block.

* The head holds the tail, ``mlp..mlp.down``: the head's forward up to the tail, but for the modules with matrices
  before it. In an MLP that is the activation. An empty head, ``..output.dense``, is the block itself.
* The head hands its output to the tails, ``norm_2..mlp.gate,mlp.up``: the head, whose output the tails do not keep.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATH = r"\w+(?:\.\w+)*"
_SPAN = re.compile(rf"(?:{_PATH})?\.\.{_PATH}(?:,{_PATH})*")


@dataclass(frozen=True)
class UnitSpan:
    """Paths of modules below a block."""

    head: str
    tails: tuple[str, ...]

    @property
    def holds_tail(self) -> bool:
        """Whether the tail is a part of the head; there is one tail then."""
        return len(self.tails) == 1 and (not self.head or self.tails[0].startswith(f"{self.head}."))

    @property
    def paths(self) -> tuple[str, ...]:
        """Every module that it names; the block itself, the empty path, left out."""
        return (*filter(None, [self.head]), *self.tails)

    def __str__(self) -> str:
        return f"{self.head}..{','.join(self.tails)}"


def is_spans(path: str) -> bool:
    """Whether the path of a unit is spans rather than one module or method."""
    return ".." in path


def parse_spans(path: str) -> tuple[UnitSpan, ...]:
    """The spans of a unit's path.

    Raises:
        ValueError: It is none; the message begins with what was read.
    """
    spans = []
    for part in path.split(";"):
        text = part.strip()
        if _SPAN.fullmatch(text) is None:
            raise ValueError(
                f"{path!r} is no span; allowed: a module and, after two dots, the one of its parts that it ends with "
                "(mlp..mlp.down) or those that take its output in (norm..mlp.gate,mlp.up); several joined with '; '"
            )
        head, _, tails = text.partition("..")
        spans.append(UnitSpan(head, tuple(tails.split(","))))
    return tuple(spans)


def spans_path(spans: tuple[UnitSpan, ...]) -> str:
    """The unit's path that says these spans."""
    return "; ".join(map(str, spans))
