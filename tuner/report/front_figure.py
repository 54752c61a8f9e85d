"""The trials of a study as a picture: speed over peak memory, the front and the cap.

Colors are names of the page's CSS variables, so that the page decides them, by light and dark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from tuner.drawn_points import distinct_points
from tuner.hover_text import hover_text
from tuner.report.front_points import FrontData, FrontKind, FrontPoint

#: Height of the strip below the plot that shows trials without a measurement.
_STRIP_RATIO = 0.09


@dataclass(frozen=True)
class _Look:
    color: str
    symbol: str
    size: int


#: Told apart by shape as well as by color; in the order in which they are drawn, the most telling ones on top.
_LOOKS = {
    FrontKind.INFEASIBLE: _Look("var(--over)", "circle-open", 9),
    FrontKind.FEASIBLE: _Look("var(--feasible)", "circle", 8),
    FrontKind.UNVERIFIED: _Look("var(--unproven)", "diamond-open", 10),
    FrontKind.MISMATCH: _Look("var(--mismatch)", "x", 9),
    FrontKind.UNFINISHED: _Look("var(--over)", "square-open", 9),
    FrontKind.FAILED: _Look("var(--mismatch)", "cross-open", 9),
    FrontKind.OUT_OF_MEMORY: _Look("var(--over)", "triangle-up", 10),
    FrontKind.FRONT: _Look("var(--front)", "circle", 11),
    FrontKind.BEST: _Look("var(--best)", "star", 17),
}


def draw_front(data: FrontData) -> go.Figure:
    """The figure: each trial with its policy on hover, the front, the cap, and below it what has no measurement."""
    figure = go.Figure()
    if data.front:
        figure.add_trace(_front_line(data.front))
    for kind, look in _LOOKS.items():
        if data.of_kind(kind):
            figure.add_trace(_markers(_drawn(data.of_kind(kind), kind), kind, look))
        figure.add_traces(list(_strip_markers(data, kind, look)))
    for point in data.points:
        if point.label is not None:
            figure.add_annotation(text=point.label, x=point.peak_memory, y=point.speed, yshift=-15, showarrow=False)
    _draw_cap(figure, data.memory_cap, data.memory_unit)
    legend = {"orientation": "h", "traceorder": "reversed", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}
    figure.update_layout(legend=legend, hovermode="closest", margin={"l": 60, "r": 20, "t": 20, "b": 50})
    figure.update_xaxes(title=f"peak memory ({data.memory_unit})")
    figure.update_yaxes(title=data.speed_title, separatethousands=True)
    if not data.points:
        figure.update_yaxes(range=[0, 1], showticklabels=False)
    if data.unmeasured:
        _lay_out_strip(figure)
    return figure


def _drawn(points: Sequence[FrontPoint], kind: FrontKind) -> Sequence[FrontPoint]:
    """Those that are in the search's answer are drawn each; of the crowd, one per place."""
    if kind in (FrontKind.BEST, FrontKind.FRONT):
        return points
    return distinct_points(points, [(point.peak_memory, point.speed) for point in points])


def _front_line(front: Sequence[FrontPoint]) -> go.Scatter:
    # With this much memory, the fastest measured placement that fits is the last point to the left: a staircase. A
    # winner by a tie may lie below it.
    fastest_so_far = itertools.accumulate((point.speed for point in front), max)
    steps = [point for point, fastest in zip(front, fastest_so_far, strict=True) if point.speed == fastest]
    return go.Scatter(
        x=[point.peak_memory for point in steps],
        y=[point.speed for point in steps],
        mode="lines",
        line={"color": _LOOKS[FrontKind.FRONT].color, "width": 2, "shape": "hv"},
        hoverinfo="skip",
        showlegend=False,
    )


def _markers(points: Sequence[FrontPoint], kind: FrontKind, look: _Look) -> go.Scatter:
    trace = _scatter(kind, look, [point.hover for point in points])
    trace.update(x=[point.peak_memory for point in points], y=[point.speed for point in points])
    if kind in (FrontKind.BEST, FrontKind.FRONT) and any(point.speed_error for point in points):
        errors = [point.speed_error or 0.0 for point in points]
        trace.update(error_y={"array": errors, "color": look.color, "thickness": 1, "width": 3})
    return trace


def _strip_markers(data: FrontData, kind: FrontKind, look: _Look) -> Iterable[go.Scatter]:
    """In the strip: at the predicted peaks, and at its right end for those without one."""
    known = [p for p in data.unmeasured if p.kind is kind and p.predicted_peak is not None]
    known = distinct_points(known, [(p.predicted_peak or 0.0, 0.0) for p in known])
    unknown = [p for p in data.unmeasured if p.kind is kind and p.predicted_peak is None]
    if known:
        trace = _scatter(kind, look, [point.hover for point in known])
        yield trace.update(x=[point.predicted_peak for point in known], y=[0] * len(known), yaxis="y2")
    if unknown:
        place = 0.99 - 0.03 * list(_LOOKS).index(kind) / len(_LOOKS)
        trace = _scatter(kind, look, [point.hover for point in unknown])
        yield trace.update(x=[place], y=[0], xaxis="x2", yaxis="y2", showlegend=not known)


def _scatter(kind: FrontKind, look: _Look, hovers: Iterable[tuple[str, ...]]) -> go.Scatter:
    return go.Scatter(
        text=[hover_text(lines) for lines in hovers],
        mode="markers",
        name=kind.value,
        legendgroup=kind.value,
        marker={
            "color": look.color,
            "symbol": look.symbol,
            "size": look.size,
            "line": {"width": 2, "color": look.color},
        },
        hoverinfo="text",
        cliponaxis=True,
    )


def _lay_out_strip(figure: go.Figure) -> None:
    figure.update_layout(
        xaxis={"anchor": "y2"},
        yaxis={"domain": [_STRIP_RATIO + 0.05, 1]},
        xaxis2={"overlaying": "x", "anchor": "y2", "range": [0, 1], "fixedrange": True, "visible": False},
        yaxis2={
            "domain": [0, _STRIP_RATIO],
            "range": [-1, 1],
            "fixedrange": True,
            "showticklabels": False,
            "showgrid": False,
            "zeroline": False,
            "ticks": "",
        },
    )
    figure.add_annotation(
        text="not measured, at the predicted peak",
        xref="paper",
        yref="paper",
        x=0,
        y=_STRIP_RATIO,
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        font={"size": 11},
    )


def _draw_cap(figure: go.Figure, cap: float, unit: str) -> None:
    figure.add_shape(
        type="line",
        x0=cap,
        x1=cap,
        y0=0,
        y1=1,
        yref="paper",
        line={"color": "var(--cap)", "width": 2, "dash": "dash"},
    )
    figure.add_annotation(
        text=f"cap {cap:.3g} {unit}",
        x=cap,
        y=1,
        yref="paper",
        xanchor="right",
        xshift=-4,
        yanchor="top",
        showarrow=False,
        font={"color": "var(--cap)"},
        bgcolor="var(--page)",
    )
