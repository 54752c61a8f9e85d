"""The trials of a study as a picture, speed over peak memory: the data first, the drawing second."""

from __future__ import annotations

import enum
import html
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

_BYTES_PER_MIB, _BYTES_PER_GIB = 2**20, 2**30
#: More of them would push the plot off the page; the table of trials lists all.
_MAX_LISTED = 6
#: As readable on white as on dark grey (4.3:1), since the page that shows the figure decides which it is.
_INK = "#7a7a7a"
_GRID = "rgba(128, 128, 128, 0.25)"
_CAP_COLOR = "#e03131"


class FrontKind(str, enum.Enum):
    """What a measured trial is to the reader; the value is its name in the legend."""

    BEST = "best"
    FRONT = "on the front"
    FEASIBLE = "feasible, not on the front"
    INFEASIBLE = "over the memory cap"
    MISMATCH = "trains another model"
    UNVERIFIED = "not proven"


@dataclass(frozen=True)
class FrontTrial:
    """What the figure must know of a trial. Flags are the search's own decisions; nothing is decided here.

    Attributes:
        status: How it ended, for example ``COMPLETED`` or ``OUT_OF_MEMORY``.
        verdict: ``MATCH``, ``MISMATCH`` or ``UNVERIFIED``; None where nothing was compared.
        relative_speed: Samples per second over those of the interleaved reference.
        reason: Why it has no measurement, in one line.
    """

    number: int
    status: str
    policy_summary: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    feasible: bool
    on_front: bool
    is_best: bool
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    relative_speed: float | None = None
    peak_memory_bytes: int | None = None
    verdict: str | None = None
    reason: str | None = None
    is_baseline: bool = False


@dataclass(frozen=True)
class FrontPoint:
    """One measured trial: where it is drawn, as what, and what the reader is told of it, line by line.

    Attributes:
        label: Written beside the point; None for most.
    """

    number: int
    peak_memory: float
    speed: float
    kind: FrontKind
    hover: tuple[str, ...]
    label: str | None = None


@dataclass(frozen=True)
class UnmeasuredTrial:
    """A trial that has no place in the plot, and why."""

    number: int
    status: str
    policy_summary: str
    reason: str | None


@dataclass(frozen=True)
class FrontData:
    """Everything the figure shows.

    Attributes:
        points: In order of peak memory, then of speed.
        speed_title: What ``speed`` is: relative to the baseline where all trials were timed beside the same reference,
            since raw throughput moves with the load of the machine; else tokens or samples per second.
        memory_unit: ``GiB``, or ``MiB`` where all is small; unit of every ``peak_memory`` and of the cap.
        memory_cap: The study's cap; None where it has none.
    """

    points: tuple[FrontPoint, ...]
    unmeasured: tuple[UnmeasuredTrial, ...]
    speed_title: str
    memory_unit: str
    memory_cap: float | None

    def of_kind(self, kind: FrontKind) -> tuple[FrontPoint, ...]:
        return tuple(point for point in self.points if point.kind is kind)

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        """The Pareto front from the smallest peak to the largest, the best trial included."""
        return tuple(point for point in self.points if point.kind in (FrontKind.BEST, FrontKind.FRONT))


def front_points(trials: Sequence[FrontTrial], memory_cap_bytes: int | None) -> FrontData:
    """What to draw for the trials; see `FrontData` for the units."""
    has_tokens = all(trial.tokens_per_second is not None for trial in trials if trial.samples_per_second is not None)
    unit = "tokens/s" if has_tokens else "samples/s"
    baseline_speed = _common_baseline_speed(trials)
    sizes = [trial.peak_memory_bytes for trial in trials if trial.peak_memory_bytes is not None]
    is_small = max([*sizes, memory_cap_bytes or 0], default=0) < 2 * _BYTES_PER_GIB
    memory_unit, num_bytes = ("MiB", _BYTES_PER_MIB) if is_small else ("GiB", _BYTES_PER_GIB)
    points = []
    unmeasured = []
    for trial in trials:
        throughput = trial.tokens_per_second if has_tokens else trial.samples_per_second
        if throughput is None or trial.peak_memory_bytes is None:
            unmeasured.append(UnmeasuredTrial(trial.number, trial.status, trial.policy_summary, trial.reason))
            continue
        peak = trial.peak_memory_bytes / num_bytes
        kind = _kind(trial, memory_cap_bytes)
        relative = None if baseline_speed is None else (trial.relative_speed or 0.0) / baseline_speed
        hover = _hover(trial, kind, f"{_speed(throughput)} {unit} as measured", relative, f"{peak:.3g} {memory_unit}")
        label = "baseline" if trial.is_baseline else None
        speed = throughput if relative is None else relative
        points.append(FrontPoint(trial.number, peak, speed, kind, hover, label))
    return FrontData(
        points=tuple(sorted(points, key=lambda point: (point.peak_memory, point.speed))),
        unmeasured=tuple(unmeasured),
        speed_title=f"throughput ({unit})" if baseline_speed is None else "speed (baseline = 1)",
        memory_unit=memory_unit,
        memory_cap=None if memory_cap_bytes is None else memory_cap_bytes / num_bytes,
    )


def _common_baseline_speed(trials: Sequence[FrontTrial]) -> float | None:
    """The baseline's relative speed where every measured trial has one; None where raw throughput must do."""
    measured = [trial for trial in trials if trial.samples_per_second is not None]
    if not all(trial.relative_speed is not None for trial in measured):
        return None
    return next((trial.relative_speed for trial in measured if trial.is_baseline), None)


def _kind(trial: FrontTrial, memory_cap_bytes: int | None) -> FrontKind:
    if trial.is_best:
        return FrontKind.BEST
    if trial.on_front:
        return FrontKind.FRONT
    if trial.feasible:
        return FrontKind.FEASIBLE
    if trial.verdict == "MISMATCH":
        return FrontKind.MISMATCH
    assert trial.peak_memory_bytes is not None
    if memory_cap_bytes is not None and trial.peak_memory_bytes > memory_cap_bytes:
        return FrontKind.INFEASIBLE
    return FrontKind.UNVERIFIED


def _hover(trial: FrontTrial, kind: FrontKind, throughput: str, relative: float | None, peak: str) -> tuple[str, ...]:
    return (
        trial.policy_summary,
        throughput if relative is None else f"{relative:.2f} x the baseline's speed ({throughput})",
        f"peak {peak}",
        f"micro-batch {trial.micro_batch_size} x {trial.gradient_accumulation_steps} accumulation steps",
        f"verdict {trial.verdict or 'none'}",
        f"trial {trial.number}: {kind.value}",
    )


@dataclass(frozen=True)
class _Look:
    color: str
    symbol: str
    size: int


#: Told apart by shape as well as by color.
_LOOKS = {
    FrontKind.INFEASIBLE: _Look(_INK, "circle-open", 9),
    FrontKind.MISMATCH: _Look("#d6336c", "x", 9),
    FrontKind.UNVERIFIED: _Look("#a07800", "diamond-open", 9),
    FrontKind.FEASIBLE: _Look("#4c9be8", "circle", 8),
    FrontKind.FRONT: _Look("#1971c2", "circle", 11),
    FrontKind.BEST: _Look("#e8590c", "star", 17),
}


def draw_front(data: FrontData) -> go.Figure:
    """The figure: one point per measured trial with its policy on hover, the front, the cap, and the unmeasured ones.

    Its background is transparent and its colors suit light and dark pages alike.
    """
    figure = go.Figure()
    figure.add_trace(_front_line(data.front))
    for kind, look in _LOOKS.items():
        points = data.of_kind(kind)
        if points:
            figure.add_trace(_markers(points, kind, look))
    for point in data.points:
        if point.label is not None:
            figure.add_annotation(text=point.label, x=point.peak_memory, y=point.speed, yshift=-14, showarrow=False)
    if data.memory_cap is not None:
        _draw_cap(figure, data.memory_cap, data.memory_unit)
    note = _unmeasured_note(data.unmeasured)
    if note:
        figure.add_annotation(
            text=note,
            xref="paper",
            yref="paper",
            x=0,
            y=0,
            yshift=-60,
            xanchor="left",
            yanchor="top",
            align="left",
            showarrow=False,
        )
    figure.update_layout(
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": _INK, "size": 13},
        legend={
            "orientation": "h",
            "traceorder": "reversed",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
        },
        hovermode="closest",
        margin={"l": 70, "r": 30, "t": 70, "b": 70 + 18 * (note.count("<br>") + 1 if note else 0)},
        hoverlabel={"align": "left", "font": {"size": 13}},
    )
    axis = {"gridcolor": _GRID, "zeroline": False, "linecolor": _INK, "ticks": "outside", "tickcolor": _INK}
    figure.update_xaxes(title=f"peak memory ({data.memory_unit})", **axis)
    figure.update_yaxes(title=data.speed_title, separatethousands=True, **axis)
    return figure


def front_html(data: FrontData) -> str:
    """The figure as one HTML file that needs no network: plotly's script is part of it (about 5 MB)."""
    text: str = draw_front(data).to_html(
        include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": True}
    )
    return text


def _front_line(front: Sequence[FrontPoint]) -> go.Scatter:
    # With this much memory, the fastest measured placement that fits is the last point to the left: a staircase.
    return go.Scatter(
        x=[point.peak_memory for point in front],
        y=[point.speed for point in front],
        mode="lines",
        line={"color": _LOOKS[FrontKind.FRONT].color, "width": 2, "shape": "hv"},
        hoverinfo="skip",
        showlegend=False,
    )


def _markers(points: Sequence[FrontPoint], kind: FrontKind, look: _Look) -> go.Scatter:
    return go.Scatter(
        x=[point.peak_memory for point in points],
        y=[point.speed for point in points],
        text=["<br>".join([f"<b>{_safe(p.hover[0])}</b>", *map(_safe, p.hover[1:])]) for p in points],
        mode="markers",
        name=kind.value,
        marker={
            "color": look.color,
            "symbol": look.symbol,
            "size": look.size,
            "line": {"width": 2, "color": look.color},
        },
        hoverinfo="text",
    )


def _draw_cap(figure: go.Figure, cap: float, unit: str) -> None:
    figure.add_vline(x=cap, line={"color": _CAP_COLOR, "width": 2, "dash": "dash"})
    figure.add_annotation(
        text=f"cap {cap:.3g} {unit}",
        x=cap,
        y=1,
        yref="paper",
        xanchor="right",
        xshift=-6,
        yanchor="top",
        showarrow=False,
        font={"color": _CAP_COLOR},
    )


def _unmeasured_note(trials: Sequence[UnmeasuredTrial]) -> str:
    if not trials:
        return ""
    lines = [
        f"trial {trial.number}: {trial.status}, {_safe(trial.policy_summary)}"
        + (f" ({_safe(_shortened(trial.reason))})" if trial.reason else "")
        for trial in trials[:_MAX_LISTED]
    ]
    more = len(trials) - _MAX_LISTED
    if more > 0:
        lines.append(f"and {more} more")
    return "<br>".join(["Without a measurement:", *lines])


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _safe(text: str) -> str:
    return html.escape(text, quote=False)


def _speed(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
