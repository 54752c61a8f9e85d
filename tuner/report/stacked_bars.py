"""Bars that are divided into parts, all on one scale: the data of a drawing, in words and per cents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: A part that is narrower has no room for its amount on a wide screen, and on a narrow one.
_LEAST_LABELLED_PCT, _LEAST_LABELLED_ANYWHERE_PCT = 6.0, 20.0


@dataclass(frozen=True)
class Part:
    """What a bar is made of: a name, a color as the page names it, and an amount."""

    name: str
    hue: str
    amount: float


@dataclass(frozen=True)
class BarPart:
    """Attributes:
    width_pct: Of the whole scale.
    tip: Name, amount and share.
    label: Inside the part; empty where there is no room.
    is_wide: There is room for the label on a narrow screen as well.
    """

    hue: str
    width_pct: float
    tip: str
    label: str
    is_wide: bool


@dataclass(frozen=True)
class Bar:
    """One bar with what stands above it."""

    title: str
    subtitle: str
    total: str
    parts: tuple[BarPart, ...]


@dataclass(frozen=True)
class Mark:
    """A line through all bars, such as the cap."""

    at_pct: float
    label: str


@dataclass(frozen=True)
class StackedBars:
    """Attributes:
    legend: Name and color of each part that occurs.
    mark: None where nothing is marked.
    """

    bars: tuple[Bar, ...]
    legend: tuple[tuple[str, str], ...]
    mark: Mark | None


@dataclass(frozen=True)
class BarContent:
    """A bar before it is brought to scale.

    Attributes:
        total: What the whole was measured as, which the parts may miss by their own imprecision.
    """

    title: str
    subtitle: str
    total: str
    parts: tuple[Part, ...]


def stack_bars(
    contents: Sequence[BarContent],
    *,
    text: Callable[[float], str],
    mark: float | None = None,
    mark_label: str = "",
) -> StackedBars:
    """The bars on one scale, on which the longest one, or the mark, ends just before the edge.

    Args:
        text: An amount with its unit.
        mark: Amount at which to draw a line.
    """
    totals = [sum(part.amount for part in content.parts) for content in contents]
    scale = 1.02 * max([*totals, mark or 0.0], default=0.0) or 1.0
    bars = tuple(_bar(content, total, scale, text) for content, total in zip(contents, totals, strict=True))
    legend = {part.name: part.hue for content in contents for part in content.parts if part.amount > 0}
    order = [part.name for part in max(contents, key=lambda content: len(content.parts)).parts] if contents else []
    return StackedBars(
        bars=bars,
        legend=tuple((name, legend[name]) for name in order if name in legend),
        mark=None if mark is None else Mark(100 * mark / scale, mark_label),
    )


def _bar(content: BarContent, total: float, scale: float, text: Callable[[float], str]) -> Bar:
    parts = []
    for part in content.parts:
        if part.amount > 0:
            width_pct = 100 * part.amount / scale
            tip = f"{part.name} {text(part.amount)}, {part.amount / total:.0%}"
            label = text(part.amount) if width_pct >= _LEAST_LABELLED_PCT else ""
            parts.append(BarPart(part.hue, width_pct, tip, label, width_pct >= _LEAST_LABELLED_ANYWHERE_PCT))
    return Bar(content.title, content.subtitle, content.total, tuple(parts))
