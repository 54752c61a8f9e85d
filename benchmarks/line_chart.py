"""Small line charts as SVG text, so that a benchmark's figure needs no browser and no further package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLORS = ("#1f6fb2", "#d1661b", "#3a8f4d", "#8a55a8")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _GAP = 420, 240, 56, 44, 44, 24


@dataclass(frozen=True)
class Line:
    """One curve; ``xs`` ascending."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes, both of which begin at 0."""

    title: str
    lines: tuple[Line, ...]


def draw(panels: Sequence[Panel], *, x_title: str) -> str:
    """The panels side by side."""
    width = len(panels) * (_LEFT + _WIDTH + _GAP)
    height = _TOP + _HEIGHT + _BOTTOM
    drawn = "".join(
        f'<g transform="translate({index * (_LEFT + _WIDTH + _GAP) + _LEFT},{_TOP})">{_draw(panel, x_title)}</g>\n'
        for index, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="#333">\n<rect width="100%" height="100%" fill="white"/>\n'
        f"{drawn}</svg>\n"
    )


def _draw(panel: Panel, x_title: str) -> str:
    x_ticks = _ticks(max(x for line in panel.lines for x in line.xs))
    y_ticks = _ticks(max(y for line in panel.lines for y in line.ys))
    parts = [f'<text x="0" y="-26" font-weight="bold">{escape(panel.title)}</text>']
    for tick in y_ticks:
        y = _HEIGHT * (1 - tick / y_ticks[-1])
        parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x = _WIDTH * tick / x_ticks[-1]
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 36}" text-anchor="middle">{escape(x_title)}</text>')
    for index, (line, color) in enumerate(zip(panel.lines, _COLORS, strict=False)):
        points = " ".join(
            f"{_WIDTH * x / x_ticks[-1]:.1f},{_HEIGHT * (1 - y / y_ticks[-1]):.1f}"
            for x, y in zip(line.xs, line.ys, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{index * 140}" y="-8" fill="{color}">{escape(line.name)}</text>')
    return "".join(parts)


def _ticks(highest: float) -> list[float]:
    """Round numbers from 0 to the highest value or just above it."""
    rough = max(highest, 1e-9) / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * index for index in range(math.ceil(highest / step) + 1)]
