"""A plotly figure as part of a page, in the page's own colors, by light and dark."""

from __future__ import annotations

import json
from dataclasses import dataclass

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types
from markupsafe import Markup

_AXIS = {
    "gridcolor": "var(--line)",
    "linecolor": "var(--muted)",
    "tickcolor": "var(--muted)",
    "ticks": "outside",
    "zeroline": False,
    "automargin": True,
}


@dataclass(frozen=True)
class FigureView:
    """A part of a figure that a button shows.

    Attributes:
        layout: Entries of plotly's layout by their path, for example ``xaxis.range``.
    """

    name: str
    layout: dict[str, object]


@dataclass(frozen=True)
class PageFigure:
    """A figure, and what the page must know to draw it.

    Attributes:
        data: JSON for the page's script: traces, layout and views; nothing in it can end a script element.
        views: Names of the views, the one that is shown first in front; empty where there is one only.
        caption: Below the figure; plain text.
    """

    data: Markup
    views: tuple[str, ...]
    caption: str


def page_figure(figure: go.Figure, *, caption: str, views: tuple[FigureView, ...] = ()) -> PageFigure:
    """The figure for the page's script.

    Args:
        figure: Its colors may be CSS variables of the page, such as ``var(--ink)``.
        views: The first one is shown first.
    """
    figure.update_layout(
        template=go.layout.Template(),
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": "var(--ink)", "size": 13, "family": "system-ui, sans-serif"},
        hoverlabel={
            "align": "left",
            "bgcolor": "var(--panel)",
            "bordercolor": "var(--muted)",
            "font": {"color": "var(--ink)", "size": 13},
        },
        autosize=True,
        uirevision="kept",
    )
    figure.update_xaxes(**_AXIS)
    figure.update_yaxes(**{name: value for name, value in _AXIS.items() if name != "ticks"})
    content = json.loads(figure.to_json())
    content["views"] = [view.layout for view in views]
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return PageFigure(Markup(text), tuple(view.name for view in views), caption)
