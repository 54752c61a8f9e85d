"""What was predicted of each trial against what was measured, as a picture and as errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from tuner.drawn_points import distinct_points
from tuner.hover_text import hover_text
from tuner.prediction_errors import ErrorFigures, PredictionErrors, peak_error, step_time_error
from tuner.report.figure import PageFigure, page_figure
from tuner.report.front_points import memory_unit
from tuner.results import TrialRecord


@dataclass(frozen=True)
class PredictedPoint:
    """One trial, in the figure's unit.

    Attributes:
        deviation: One standard deviation of the prediction; None where it has none.
    """

    predicted: float
    measured: float
    deviation: float | None
    is_best: bool
    hover: tuple[str, ...]


@dataclass(frozen=True)
class ErrorRow:
    """How far off one quantity was, in words."""

    quantity: str
    num_trials: str
    median: str
    largest: str
    in_interval: str


def peak_figure(trials: Iterable[TrialRecord], memory_cap_bytes: int) -> PageFigure | None:
    """Predicted over measured peaks; None where none was both."""
    unit, num_bytes = memory_unit(memory_cap_bytes)
    points = [
        PredictedPoint(
            predicted=trial.predicted_peak_memory_bytes / num_bytes,
            measured=trial.peak_memory_bytes / num_bytes,
            deviation=None,
            is_best=trial.is_best,
            hover=_hover(trial, error),
        )
        for trial in trials
        if trial.predicted_peak_memory_bytes is not None
        and trial.peak_memory_bytes is not None
        and (error := peak_error(trial)) is not None
    ]
    return _figure(points, f"peak memory ({unit})")


def step_time_figure(trials: Iterable[TrialRecord]) -> PageFigure | None:
    """Predicted over measured step times; None where none was both."""
    timed = [trial for trial in trials if step_time_error(trial) is not None]
    longest_s = max((trial.step_time_s or 0.0 for trial in timed), default=0.0)
    unit, per_second = ("ms", 1000) if longest_s < 1 else ("s", 1)
    points = [
        PredictedPoint(
            predicted=trial.predicted_step_time_s * per_second,
            measured=trial.step_time_s * per_second,
            deviation=_scaled(trial.predicted_step_time_spread_s, per_second),
            is_best=trial.is_best,
            hover=_hover(trial, step_time_error(trial) or 0.0),
        )
        for trial in timed
        if trial.predicted_step_time_s is not None and trial.step_time_s is not None
    ]
    return _figure(points, f"step time ({unit})")


def error_rows(errors: PredictionErrors) -> list[ErrorRow]:
    """Rows for what was predicted at all."""
    named = (("peak memory", errors.peak), ("step time", errors.time))
    return [_error_row(name, figures) for name, figures in named if figures is not None]


def _error_row(quantity: str, figures: ErrorFigures) -> ErrorRow:
    inside = "" if figures.num_in_interval is None else f"{figures.num_in_interval} of {figures.num_trials}"
    return ErrorRow(quantity, f"{figures.num_trials:,}", f"{figures.median:.2%}", f"{figures.largest:.2%}", inside)


def _hover(trial: TrialRecord, error: float) -> tuple[str, ...]:
    best = ", the best" if trial.is_best else ""
    return (trial.policy_summary, f"predicted {error:+.2%} against measured", f"trial {trial.number}{best}")


def _scaled(value_s: float | None, per_second: float) -> float | None:
    return None if value_s is None else value_s * per_second


def _figure(points: Sequence[PredictedPoint], quantity: str) -> PageFigure | None:
    if not points:
        return None
    figure = go.Figure()
    ends = [value for point in points for value in (point.predicted, point.measured)]
    diagonal = [min(ends), max(ends)]
    figure.add_trace(
        go.Scatter(
            x=diagonal, y=diagonal, mode="lines", line={"color": "var(--muted)", "dash": "dot"}, hoverinfo="skip"
        )
    )
    drawn = distinct_points(points, [(point.measured, point.predicted) for point in points])
    figure.add_trace(_markers([p for p in drawn if not p.is_best], "var(--front)", "circle", 8))
    figure.add_trace(_markers([p for p in drawn if p.is_best], "var(--best)", "star", 14))
    figure.update_layout(showlegend=False, hovermode="closest", margin={"l": 60, "r": 20, "t": 10, "b": 50})
    figure.update_xaxes(title=f"measured {quantity}")
    figure.update_yaxes(title=f"predicted {quantity}")
    bars = " Bars: one standard deviation of the prediction." if any(p.deviation for p in points) else ""
    return page_figure(
        figure, caption=f"On the dotted line prediction and measurement agree; the star is the best.{bars}"
    )


def _markers(points: Sequence[PredictedPoint], color: str, symbol: str, size: int) -> go.Scatter:
    trace = go.Scatter(
        x=[point.measured for point in points],
        y=[point.predicted for point in points],
        text=[hover_text(point.hover) for point in points],
        mode="markers",
        marker={"color": color, "symbol": symbol, "size": size},
        hoverinfo="text",
    )
    if any(point.deviation for point in points):
        deviations = [point.deviation or 0.0 for point in points]
        trace.update(error_y={"array": deviations, "color": color, "thickness": 1, "width": 2})
    return trace
