"""Peaks of the stages of a pipeline: the winner's as bars under the cap, and those of the trials beside it."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.memory_size import format_bytes
from tuner.report.stacked_bars import BarContent, Part, StackedBars, stack_bars
from tuner.report.telling_trials import TellingRow, TellingTrial, compared_and_front, telling_row
from tuner.results import StudyResults, TrialRecord
from tuner.summary import StudySummary


@dataclass(frozen=True)
class StagesView:
    """Attributes:
    drawn: The trial of the bars, one for each stage.
    rows: All trials that a reader compares, the drawn one too.
    """

    drawn: str
    bars: StackedBars
    columns: tuple[str, ...]
    rows: tuple[TellingRow, ...]


def stages_view(results: StudyResults, summary: StudySummary) -> StagesView | None:
    """None where no trial ran in stages."""
    told = [each for each in compared_and_front(results, summary) if each.trial.stage_peak_memory_bytes is not None]
    if not told:
        return None
    num_stages = len(told[0].trial.stage_peak_memory_bytes or ())
    return StagesView(
        drawn=f"{told[0].numbered_title}: {told[0].trial.policy_summary}",
        bars=_bars(told[0].trial, results.memory_cap_bytes),
        columns=tuple(f"stage {stage}" for stage in range(num_stages)),
        rows=tuple(_row(each) for each in told),
    )


def _bars(trial: TrialRecord, cap_bytes: int) -> StackedBars:
    peaks, in_flight = trial.stage_peak_memory_bytes or (), trial.stage_micro_batches or ()
    contents = [
        BarContent(
            title=f"Stage {stage}",
            subtitle=f"{count} micro-batch{'' if count == 1 else 'es'} in flight",
            total=_peak(trial, stage),
            parts=(Part("measured peak", "sky", float(peak)),),
        )
        for stage, (peak, count) in enumerate(zip(peaks, in_flight, strict=True))
    ]
    return stack_bars(
        contents,
        text=lambda num_bytes: format_bytes(round(num_bytes)),
        mark=float(cap_bytes),
        mark_label=f"cap {format_bytes(cap_bytes)}",
    )


def _row(told: TellingTrial) -> TellingRow:
    trial = told.trial
    values = tuple(_short_peak(trial, stage) for stage in range(len(trial.stage_peak_memory_bytes or ())))
    return telling_row(told, values)


def _peak(trial: TrialRecord, stage: int) -> str:
    """``9.5 MiB, predicted 9.6 MiB (+1.1%)``, with how far the prediction was off."""
    measured = format_bytes((trial.stage_peak_memory_bytes or ())[stage])
    if trial.predicted_stage_peak_memory_bytes is None:
        return measured
    predicted = format_bytes(trial.predicted_stage_peak_memory_bytes[stage])
    return f"{measured}, predicted {predicted} ({_error(trial, stage)})"


def _short_peak(trial: TrialRecord, stage: int) -> str:
    """``9.5 MiB (+1.1%)``: the same without the predicted peak, so that many stages fit side by side."""
    measured = format_bytes((trial.stage_peak_memory_bytes or ())[stage])
    return measured if trial.predicted_stage_peak_memory_bytes is None else f"{measured} ({_error(trial, stage)})"


def _error(trial: TrialRecord, stage: int) -> str:
    measured, predicted = trial.stage_peak_memory_bytes or (), trial.predicted_stage_peak_memory_bytes or ()
    error = round(predicted[stage] / measured[stage] - 1, 3) + 0.0  # So that no zero has a minus.
    return f"{error:+.1%}"
