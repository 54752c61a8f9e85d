"""Regret over trials as a picture: panels first, then two drawings of them, one to explore and one for the docs."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types
from plotly.subplots import make_subplots  # type: ignore[import-untyped]
from search_metrics import FOUND, RegretCurve

#: What is nearer to the best than the floor is drawn on it; what is farther than the ceiling, or not feasible, above.
FLOOR, CEILING = 0.001, 0.5
_TICKS = {0.001: "0.1 %", 0.01: "1 %", 0.1: "10 %"}
_COLORS = ("#e03131", "#1971c2", "#2f9e44", "#9c36b5", "#e8930c", "#868e96")
#: As readable on white as on dark grey, since the page that shows the figure decides which it is.
_INK, _GRID = "#7a7a7a", "#80808040"
_TITLE = "How much longer the best step so far takes than the best there is, after each trial"
_COLUMNS = 3
_WIDTH, _HEIGHT = 250, 150
_LEFT, _TOP, _GAP_X, _GAP_Y, _BOTTOM = 48, 44, 22, 50, 26


@dataclass(frozen=True)
class Line:
    """One sampler in one panel, each of shape (num_trials,), within floor and ceiling; None before the first."""

    sampler: str
    lower: tuple[float | None, ...]
    median: tuple[float | None, ...]
    upper: tuple[float | None, ...]


@dataclass(frozen=True)
class Panel:
    """One problem."""

    title: str
    lines: tuple[Line, ...]

    @property
    def num_trials(self) -> int:
        return max((len(line.median) for line in self.lines), default=1)


def regret_panels(curves: Mapping[str, Mapping[str, RegretCurve]]) -> tuple[Panel, ...]:
    """Panels by problem, lines by sampler."""
    return tuple(
        Panel(title, tuple(_line(sampler, curve) for sampler, curve in by_sampler.items()))
        for title, by_sampler in curves.items()
    )


def _line(sampler: str, curve: RegretCurve) -> Line:
    # Where even the median search has found nothing feasible there is nothing to draw; its upper quartile may not have.
    return Line(sampler, _clipped(curve.lower), _clipped(curve.median), _clipped(curve.upper, above=CEILING))


def _clipped(values: Sequence[float], *, above: float | None = None) -> tuple[float | None, ...]:
    return tuple(above if math.isinf(value) else min(max(value, FLOOR), CEILING) for value in values)


def regret_html(panels: Sequence[Panel]) -> str:
    """A page of its own, with everything in it."""
    num_rows = -(-len(panels) // _COLUMNS)
    figure = make_subplots(num_rows, _COLUMNS, subplot_titles=[panel.title for panel in panels])
    for index, panel in enumerate(panels):
        row, column = divmod(index, _COLUMNS)
        for line in panel.lines:
            color = _color(line.sampler, panels)
            trials = list(range(1, len(line.median) + 1))
            place = {"row": row + 1, "col": column + 1}
            band = [(t, low, high) for t, low, high in zip(trials, line.lower, line.upper, strict=True) if low and high]
            figure.add_trace(
                go.Scatter(
                    x=[t for t, _, _ in band] + [t for t, _, _ in reversed(band)],
                    y=[high for _, _, high in band] + [low for _, low, _ in reversed(band)],
                    fill="toself",
                    fillcolor=f"{color}22",
                    line={"width": 0},
                    hoverinfo="skip",
                    showlegend=False,
                    legendgroup=line.sampler,
                ),
                **place,
            )
            figure.add_trace(
                go.Scatter(
                    x=trials,
                    y=list(line.median),
                    name=line.sampler,
                    line={"color": color, "shape": "hv"},
                    showlegend=index == 0,
                    legendgroup=line.sampler,
                ),
                **place,
            )
    figure.update_yaxes(
        type="log",
        range=[math.log10(FLOOR), math.log10(CEILING)],
        tickvals=list(_TICKS),
        ticktext=list(_TICKS.values()),
    )
    figure.update_layout(
        height=320 * num_rows + 80,
        title="How much longer the best step so far takes than the best there is, after each trial",
    )
    page: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return page


def regret_svg(panels: Sequence[Panel]) -> str:
    """The same for a page that shows pictures."""
    num_rows = -(-len(panels) // _COLUMNS)
    width = _LEFT + _COLUMNS * (_WIDTH + _GAP_X)
    height = _TOP + num_rows * (_HEIGHT + _GAP_Y) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}">',
        f"<title>{_TITLE}</title>",
        *_legend(panels),
    ]
    for index, panel in enumerate(panels):
        row, column = divmod(index, _COLUMNS)
        parts += _panel(panel, _LEFT + column * (_WIDTH + _GAP_X), _TOP + row * (_HEIGHT + _GAP_Y) + 16, panels)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(panels: Sequence[Panel]) -> list[str]:
    parts = []
    for index, sampler in enumerate(_samplers(panels)):
        x = _LEFT + 110 * index
        parts.append(
            f'<line x1="{x}" y1="16" x2="{x + 18}" y2="16" stroke="{_color(sampler, panels)}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{x + 23}" y="20">{html.escape(sampler)}</text>')
    return parts


def _panel(panel: Panel, left: float, top: float, panels: Sequence[Panel]) -> list[str]:
    def x(trial: int) -> float:
        return left + _WIDTH * (trial - 1) / max(panel.num_trials - 1, 1)

    def y(regret: float) -> float:
        return top + _HEIGHT * (math.log(CEILING / regret) / math.log(CEILING / FLOOR))

    parts = [f'<text x="{left}" y="{top - 6}" font-weight="bold">{html.escape(panel.title)}</text>']
    for tick, name in _TICKS.items():
        stroke = _INK if tick == FOUND else _GRID
        parts.append(
            f'<line x1="{left}" y1="{y(tick):.1f}" x2="{left + _WIDTH}" y2="{y(tick):.1f}" stroke="{stroke}"/>'
        )
        if left == _LEFT:
            parts.append(f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{name}</text>')
    for trial in sorted({1, *range(10, panel.num_trials + 1, 10)}):
        parts.append(f'<text x="{x(trial):.1f}" y="{top + _HEIGHT + 14}" text-anchor="middle">{trial}</text>')
    for line in panel.lines:
        color = _color(line.sampler, panels)
        band = [
            (x(number), y(low), y(high))
            for number, (low, high) in enumerate(zip(line.lower, line.upper, strict=True), start=1)
            if low is not None and high is not None
        ]
        outline = [f"{a:.1f},{high:.1f}" for a, _, high in band] + [
            f"{a:.1f},{low:.1f}" for a, low, _ in reversed(band)
        ]
        parts.append(f'<polygon points="{" ".join(outline)}" fill="{color}" fill-opacity="0.12"/>')
        middle = [f"{x(n):.1f},{y(m):.1f}" for n, m in enumerate(line.median, start=1) if m is not None]
        parts.append(f'<polyline points="{" ".join(middle)}" fill="none" stroke="{color}" stroke-width="1.8"/>')
    return parts


def _samplers(panels: Sequence[Panel]) -> list[str]:
    return list(dict.fromkeys(line.sampler for panel in panels for line in panel.lines))


def _color(sampler: str, panels: Sequence[Panel]) -> str:
    return _COLORS[_samplers(panels).index(sampler) % len(_COLORS)]
