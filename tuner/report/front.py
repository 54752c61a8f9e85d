"""The front of a study as a figure of the page."""

from __future__ import annotations

from typing import NamedTuple

from tuner.front_figure import draw_front
from tuner.front_points import FrontData, FrontTrial, around_the_cap, front_points
from tuner.report.figure import FigureView, PageFigure, page_figure
from tuner.results import StudyResults, TrialRecord

_HOW_TO_READ = (
    "Each point is one trial: up is faster, left is less memory. The line is the front: with that much memory, nothing "
    "measured was faster. Bars on it span two standard errors either way."
)


class _Speed(NamedTuple):
    value: float | None
    standard_error: float | None


def front_trials(results: StudyResults) -> list[FrontTrial]:
    """The study's trials as the figure of the front takes them; speeds of the playoff where there are some."""
    return [
        FrontTrial(
            number=trial.number,
            status=trial.status.value,
            policy_summary=trial.policy_summary,
            micro_batch_size=trial.micro_batch_size,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            feasible=trial.feasible,
            on_front=trial.on_front,
            is_best=trial.is_best,
            samples_per_second=trial.samples_per_second,
            tokens_per_second=trial.tokens_per_second,
            relative_speed=speed.value,
            relative_speed_spread=speed.standard_error,
            peak_memory_bytes=trial.peak_memory_bytes,
            predicted_peak_memory_bytes=trial.predicted_peak_memory_bytes,
            verdict=trial.verification.verdict.value if trial.verification is not None else None,
            reason=trial.reason or trial.infeasible_reason,
            is_baseline=trial.is_baseline,
        )
        for trial in results.trials
        for speed in [_relative_speed(results, trial)]
    ]


def _relative_speed(results: StudyResults, trial: TrialRecord) -> _Speed:
    """As the tables compare it: by the playoff where the trial and the baseline were timed in turn."""
    baseline, playoff = results.baseline, results.playoff
    ratio = None
    if baseline is not None and playoff is not None and trial.number != baseline.number:
        ratio = playoff.ratio(trial.number, baseline.number)
    if ratio is None or baseline is None or baseline.relative_speed is None:
        return _Speed(trial.relative_speed, trial.relative_speed_spread)
    error = None if ratio.standard_error is None else ratio.standard_error * baseline.relative_speed
    return _Speed(ratio.value * baseline.relative_speed, error)


def front_figure(results: StudyResults) -> PageFigure | None:
    """Speed over peak memory; None where no trial has ended yet."""
    data = front_points(front_trials(results), memory_cap_bytes=results.memory_cap_bytes)
    if not data.points and not data.unmeasured:
        return None
    return page_figure(draw_front(data), caption=_HOW_TO_READ, views=_views(data))


def _views(data: FrontData) -> tuple[FigureView, ...]:
    """Around the cap first where the front is too small to see beside all the rest."""
    near = around_the_cap(data)
    if near is None:
        return ()
    ranges: dict[str, object] = {"xaxis.range": list(near.peak_memory), "yaxis.range": list(near.speed)}
    return (
        FigureView("around the cap", ranges),
        FigureView(f"all {len(data.points):,} measured trials", {"xaxis.autorange": True, "yaxis.autorange": True}),
    )
