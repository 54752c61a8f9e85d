"""Speed over peak of every setting of every tool, as SVG: what of ours and of others is on the way to less memory."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from tool_report import Measured, by_tool

_COLORS = ("#868e96", "#1971c2", "#2f9e44", "#9c36b5", "#e8930c", "#0c8599", "#a0522d", "#5c7cfa")
_OURS_COLOR = "#e03131"
#: As readable on white as on dark grey, since the page that shows the figure decides which it is.
_INK, _GRID = "#7a7a7a", "#80808040"
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 620, 320, 52, 30, 46, 190
_TICK = 0.1


def figure(measured: Sequence[Measured], caps: Sequence[float], ours: str) -> str:
    """A point for each setting; a line joins those of a tool that no other of its own beats in both.

    Args:
        caps: Shares of the plain peak, drawn as lines.
        ours: The tool that stands out.
    """
    axes = _Axes(measured, caps)
    width, height = _LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + _BOTTOM
    tools = by_tool(measured)
    others = [name for name in tools if name != ours]
    colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(others)} | {ours: _OURS_COLOR}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        "<title>Speed over peak memory of every setting of every tool</title>",
        *axes.drawn(caps),
    ]
    # Ours last, on top of the others.
    for index, name in enumerate([*others, *(name for name in tools if name == ours)]):
        parts += _tool(tools[name], axes, colors[name], is_ours=name == ours)
        y = _TOP + 12 + 20 * index
        parts.append(f'<circle cx="{_LEFT + _WIDTH + 18}" cy="{y - 4}" r="4" fill="{colors[name]}"/>')
        parts.append(f'<text x="{_LEFT + _WIDTH + 28}" y="{y}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axes:
    """Where a share of the plain peak and a speed are on the picture."""

    def __init__(self, measured: Sequence[Measured], caps: Sequence[float]) -> None:
        peaks = [*(each.peak_ratio for each in measured), *caps]
        speeds = [each.speed.value for each in measured]
        self._peaks = _rounded(min(peaks), max(peaks))
        self._speeds = _rounded(min(speeds), max(speeds))

    def x(self, peak_ratio: float) -> float:
        low, high = self._peaks
        return _LEFT + _WIDTH * (peak_ratio - low) / (high - low)

    def y(self, speed: float) -> float:
        low, high = self._speeds
        return _TOP + _HEIGHT * (high - speed) / (high - low)

    def drawn(self, caps: Sequence[float]) -> Iterable[str]:
        for tick in _ticks(self._speeds):
            y = self.y(tick)
            yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.1f}</text>'
        bottom = _TOP + _HEIGHT
        for tick in _ticks(self._peaks):
            x = self.x(tick)
            yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{100 * tick:.0f}</text>'
        for cap in caps:
            x = self.x(cap)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" stroke="{_INK}" stroke-dasharray="2 4"/>'
        middle = _LEFT + _WIDTH / 2
        yield f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">peak, % of the plain step\'s</text>'
        yield f'<text x="{_LEFT}" y="{_TOP - 12}">speed, times the plain step\'s (dotted: the caps)</text>'


def _rounded(low: float, high: float) -> tuple[float, float]:
    return math.floor(low / _TICK) * _TICK, math.ceil(high / _TICK + 1e-9) * _TICK


def _ticks(ends: tuple[float, float]) -> list[float]:
    return [ends[0] + _TICK * index for index in range(round((ends[1] - ends[0]) / _TICK) + 1)]


def _tool(of_tool: Sequence[Measured], axes: _Axes, color: str, *, is_ours: bool) -> Iterable[str]:
    def place(each: Measured) -> tuple[float, float]:
        return axes.x(each.peak_ratio), axes.y(each.speed.value)

    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, front(of_tool)))
    yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{2.5 if is_ours else 1}"/>'
    for each in of_tool:
        x, y = place(each)
        text = f"{each.name}: {each.speed.value:.2f} at {each.peak_ratio:.0%}"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if is_ours else 3.5}" fill="{color}">'
            f"<title>{html.escape(text)}</title></circle>"
        )


def front(of_tool: Sequence[Measured]) -> list[Measured]:
    """Those that no other of the tool beats in speed and memory at once, by peak."""
    ordered = sorted(of_tool, key=lambda each: (each.peak_ratio, -each.speed.value))
    best: list[Measured] = []
    for each in ordered:
        if not best or each.speed.value > best[-1].speed.value:
            best.append(each)
    return best
