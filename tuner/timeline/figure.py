"""A traced step as a picture: a bar per kept tensor below the memory curve."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from runners.step_timeline.records import PhaseName
from tuner.hover_text import hover_text
from tuner.timeline.data import OUTSIDE, RowGroup, TensorBar, TimelineData, TimelineScales

#: Heights in pixels.
_CURVE_PX, _GAP_PX, _ROW_PX, _MARGIN_PX = 190, 26, 19, 50
#: In rows. Left to itself, plotly makes a bar as wide as the rows of its own kind lie apart.
_BAR_WIDTH = 0.98
#: Fills of the page, as its stylesheet names them.
PHASE_HUES: dict[PhaseName, str] = {
    "forward": "teal",
    "backward": "green",
    "recompute": "rose",
    "optimizer": "yellow",
}
#: How plotly names the patterns of bars that are no plain ones.
_REBUILT, _ON_HOST = "/", "."
_PHASE_OPACITY = {"forward": 0.16, "backward": 0.16, "recompute": 0.45, "optimizer": 0.2}


def figure_height_px(data: TimelineData) -> int:
    """As high as its rows need."""
    return _CURVE_PX + _GAP_PX + _rows_px(data) + _MARGIN_PX


def draw_timeline(data: TimelineData, scales: TimelineScales) -> go.Figure:
    """The figure; its colors are the page's variables."""
    figure = go.Figure()
    _draw_curve(figure, data)
    for kind, hue in data.kinds:
        for pattern in ("", _REBUILT, _ON_HOST):
            bars = [bar for bar in data.bars if bar.kind == kind and _pattern(bar) == pattern]
            if bars:
                figure.add_traces([_unused_ends(bars, hue), _bars(bars, hue, pattern)])
    _draw_phases(figure, data)
    _draw_groups(figure, data)
    rows_ratio = _rows_px(data) / (figure_height_px(data) - _MARGIN_PX)
    figure.update_layout(
        barmode="overlay",
        showlegend=False,
        hovermode="closest",
        margin={"l": 64, "r": 12, "t": 8, "b": _MARGIN_PX - 8},
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis={"range": [0, scales.end_ms], "title": "ms since the traced step began", "anchor": "y"},
        yaxis={
            "domain": [0, rows_ratio],
            "range": [len(data.bars) - 0.4, -0.6],
            "showgrid": False,
            "tickvals": [(group.first + group.last) / 2 for group in data.groups],
            "ticktext": [_short_name(group) for group in data.groups],
        },
        yaxis2={
            "domain": [rows_ratio + _GAP_PX / (figure_height_px(data) - _MARGIN_PX), 1],
            "range": [0, scales.most_mib],
            "title": "memory (MiB)",
            "anchor": "x",
        },
    )
    return figure


def _rows_px(data: TimelineData) -> int:
    return max(_ROW_PX * len(data.bars), 2 * _ROW_PX)


def _short_name(group: RowGroup) -> str:
    """The end of a block's path: the rest is in the page's text, and narrow screens have little room."""
    if group.name == OUTSIDE:
        return "outside"
    return ".".join(group.name.split(".")[-2:])


def _draw_curve(figure: go.Figure, data: TimelineData) -> None:
    start = [data.start_mib] * len(data.times_ms)
    kept = [data.start_mib + size for size in data.kept_mib]
    common = {"x": list(data.times_ms), "yaxis": "y2", "mode": "lines"}
    figure.add_trace(
        go.Scatter(
            **common,
            y=start,
            fill="tozeroy",
            fillcolor="var(--line)",
            line={"width": 0, "shape": "hv"},
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            **common,
            y=kept,
            fill="tonexty",
            fillcolor="var(--sky)",
            line={"width": 0, "shape": "hv"},
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            **common,
            y=list(data.allocated_mib),
            line={"color": "var(--ink)", "width": 1.3, "shape": "hv"},
            text=[
                f"{time_ms:.2f} ms: {alive:.1f} MiB alive, {kept_here:.1f} MiB of it kept for backward"
                for time_ms, alive, kept_here in zip(data.times_ms, data.allocated_mib, data.kept_mib, strict=True)
            ],
            hoverinfo="text",
        )
    )
    figure.add_annotation(
        x=data.peak_ms,
        y=data.peak_mib,
        yref="y2",
        text=f"peak {data.peak_mib:.1f} MiB",
        showarrow=False,
        yanchor="bottom",
        xanchor="right" if data.peak_ms > 0.8 * data.end_ms else "center",
        font={"size": 12},
    )


def _pattern(bar: TensorBar) -> str:
    return _ON_HOST if bar.is_on_host else _REBUILT if bar.is_rebuilt else ""


def _bars(bars: Sequence[TensorBar], hue: str, pattern: str) -> go.Bar:
    """From birth to last use; hatched where a rebuild made the tensor, dotted where it waits on the host."""
    return go.Bar(
        orientation="h",
        y=[bar.row for bar in bars],
        width=_BAR_WIDTH,
        base=[bar.start_ms for bar in bars],
        x=[bar.used_ms - bar.start_ms for bar in bars],
        text=[bar.label for bar in bars],
        textposition="inside",
        insidetextanchor="start",
        textangle=0,
        insidetextfont={"color": "var(--on-fill)", "size": 10},
        hovertext=[hover_text(bar.hover) for bar in bars],
        hoverinfo="text",
        marker={
            "color": f"var(--{hue})",
            "line": {"width": 1, "color": "var(--muted)"},
            "pattern": {
                "shape": pattern,
                "fillmode": "overlay",
                "fgcolor": "var(--on-fill)",
                "fgopacity": 0.55,
                "size": 7,
                "solidity": 0.2,
            },
        },
    )


def _unused_ends(bars: Sequence[TensorBar], hue: str) -> go.Bar:
    """From the last use on, as long as the memory is not given back."""
    return go.Bar(
        orientation="h",
        y=[bar.row for bar in bars],
        width=_BAR_WIDTH,
        base=[bar.used_ms for bar in bars],
        x=[bar.end_ms - bar.used_ms for bar in bars],
        hovertext=[hover_text(bar.hover) for bar in bars],
        hoverinfo="text",
        opacity=0.4,
        marker={"color": f"var(--{hue})"},
    )


def _draw_phases(figure: go.Figure, data: TimelineData) -> None:
    for phase, start_ms, end_ms, _ in data.phases:
        figure.add_shape(
            type="rect",
            x0=start_ms,
            x1=end_ms,
            y0=0,
            y1=1,
            yref="paper",
            layer="below",
            line={"width": 0},
            fillcolor=f"var(--{PHASE_HUES[phase]})",
            opacity=_PHASE_OPACITY[phase],
        )


def _draw_groups(figure: go.Figure, data: TimelineData) -> None:
    for group in data.groups[1:]:
        figure.add_shape(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=group.first - 0.5,
            y1=group.first - 0.5,
            line={"width": 1, "color": "var(--muted)", "dash": "dot"},
        )
