"""Which operators of a block keep their outputs under action ``selective``, and how that is written.

An entry names an operator overload as torch spells it, ``aten.addmm.default``: every call of it in one forward of the
block is kept. Brackets narrow that down to some calls, counted from 0: ``aten.addmm.default[0,2]`` keeps the first and
the third, ``aten.addmm.default[::2]`` every second one from the first on, ``aten.addmm.default[1::2]`` from the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

_ENTRY = re.compile(r"([A-Za-z_]\w*(?:\.\w+){2})(?:\[(?:(\d{1,6}(?:,\d{1,6})*)|(\d{0,6})::(\d{1,6}))\])?")


@dataclass(frozen=True)
class KeptOperator:
    """One operator overload and which of its calls in a block are kept.

    Attributes:
        name: ``namespace.operator.overload``.
        calls: Indices of the kept calls, ascending; None where they are told by ``start`` and ``step``.
        start: The first kept call.
        step: Every so many-th call from there on is kept; 1 keeps all.
    """

    name: str
    calls: tuple[int, ...] | None = None
    start: int = 0
    step: int = 1

    @classmethod
    def parse(cls, text: str) -> KeptOperator:
        """The entry as data.

        Raises:
            ValueError: It is no entry; the message begins with what was read.
        """
        match = _ENTRY.fullmatch(text)
        if match is None or match[4] == "0":
            raise ValueError(
                f"{text!r} names no operator; allowed: namespace.operator.overload such as aten.mm.default, alone or "
                "with the calls to keep in brackets, [0,2] or [::2]"
            )
        if match[2] is not None:
            return cls(match[1], calls=tuple(sorted({int(index) for index in match[2].split(",")})))
        return cls(match[1], start=int(match[3] or 0), step=int(match[4] or 1))

    def keeps(self, call: int) -> bool:
        """Whether the call of that index is kept."""
        if self.calls is not None:
            return call in self.calls
        return call >= self.start and (call - self.start) % self.step == 0

    def __str__(self) -> str:
        if self.calls is not None:
            return f"{self.name}[{','.join(map(str, self.calls))}]"
        if (self.start, self.step) == (0, 1):
            return self.name
        return f"{self.name}[{self.start or ''}::{self.step}]"

    @property
    def short(self) -> str:
        """For tables: without what names of operators have in common, such as ``flash_attention`` of a fused one."""
        _, operator, overload = self.name.split(".")
        operator = operator.lstrip("_").removesuffix("_for_cpu")
        for common in ("scaled_dot_product_", "native_"):
            operator = operator.removeprefix(common)
        calls = str(self).removeprefix(self.name)
        return operator + ("" if overload == "default" else f".{overload}") + calls


def normal_keep(entries: Iterable[str]) -> tuple[str, ...]:
    """The entries in their one normal form, in alphabetical order.

    Raises:
        ValueError: One is no entry, none is left, or an operator is named twice.
    """
    kept = sorted((KeptOperator.parse(entry) for entry in entries), key=lambda each: each.name)
    if not kept:
        raise ValueError("no operator is named; allowed: one or more such as aten.mm.default")
    for before, after in pairwise(kept):
        if before.name == after.name:
            raise ValueError(f"{before} and {after} name one operator twice; write its calls in one entry")
    return tuple(map(str, kept))
