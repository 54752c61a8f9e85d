"""The front of a study as a figure of the page."""

from __future__ import annotations

from tuner.report.figure import FigureView, PageFigure, page_figure
from tuner.report.front_figure import draw_front
from tuner.report.front_points import FrontData, around_the_cap, front_points
from tuner.results import StudyResults, TrialRecord

_HOW_TO_READ = (
    "Each point is one trial: up is faster, left is less memory. The line is the front: with that much memory, nothing "
    "measured was faster. Bars on it span two standard errors either way."
)


def trials_timed_in_turn(results: StudyResults) -> list[TrialRecord]:
    """The study's trials as the figure of the front takes them; speeds of the playoff where there are some."""
    return [_as_timed_in_turn(results, trial) for trial in results.trials]


def _as_timed_in_turn(results: StudyResults, trial: TrialRecord) -> TrialRecord:
    """With its speed as the tables compare it: by the playoff where the trial and the baseline took part."""
    baseline, playoff = results.baseline, results.playoff
    ratio = None
    if baseline is not None and playoff is not None and trial.number != baseline.number:
        ratio = playoff.ratio(trial.number, baseline.number)
    if ratio is None or baseline is None or baseline.relative_speed is None:
        return trial
    unit = baseline.relative_speed
    error = None if ratio.standard_error is None else ratio.standard_error * unit
    return trial.model_copy(update={"relative_speed": ratio.value * unit, "relative_speed_spread": error})


def front_figure(results: StudyResults) -> PageFigure | None:
    """Speed over peak memory; None where no trial has ended yet."""
    data = front_points(trials_timed_in_turn(results), memory_cap_bytes=results.memory_cap_bytes)
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
