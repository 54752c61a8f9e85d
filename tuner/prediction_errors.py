"""How wrong a study's predictions were."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.results import TrialRecord

#: Standard deviations on either side of the mean that hold 90 % of a normal distribution.
_DEVIATIONS_OF_90_PCT = 1.645


@dataclass(frozen=True)
class ErrorFigures:
    """Of one quantity, over the trials of which it was both predicted and measured.

    Attributes:
        median: Of the relative errors without their sign.
        largest: Of the same.
        num_in_interval: Trials measured within the 90 % interval of their prediction; None where there is none.
    """

    num_trials: int
    median: float
    largest: float
    num_in_interval: int | None = None


@dataclass(frozen=True)
class PredictionErrors:
    """Attributes:
    peak: None where no trial has both a predicted and a measured peak.
    time: The same for step times; trials before any time was known have no prediction.
    """

    peak: ErrorFigures | None
    time: ErrorFigures | None


def peak_error(trial: TrialRecord) -> float | None:
    """Predicted over measured peak, minus one; None where one of them is missing."""
    return _relative_error(trial.predicted_peak_memory_bytes, trial.peak_memory_bytes)


def step_time_error(trial: TrialRecord) -> float | None:
    """Predicted over measured step time, minus one; None where one of them is missing."""
    return _relative_error(trial.predicted_step_time_s, trial.step_time_s)


def prediction_errors(trials: Iterable[TrialRecord]) -> PredictionErrors:
    """The errors of a study."""
    trials = list(trials)
    peaks = [error for trial in trials if (error := peak_error(trial)) is not None]
    timed = [(trial, error) for trial in trials if (error := step_time_error(trial)) is not None]
    return PredictionErrors(
        peak=_figures(peaks, None),
        time=_figures([error for _, error in timed], sum(_is_in_interval(trial) for trial, _ in timed)),
    )


def _is_in_interval(trial: TrialRecord) -> bool:
    """A measurement strays by its own standard error, too, so the interval for it is wider by that."""
    assert trial.predicted_step_time_s is not None
    assert trial.step_time_s is not None
    deviation_s = math.hypot(trial.predicted_step_time_spread_s or 0.0, trial.step_time_spread_s or 0.0)
    return abs(trial.predicted_step_time_s - trial.step_time_s) <= _DEVIATIONS_OF_90_PCT * deviation_s


def _figures(errors: Sequence[float], num_in_interval: int | None) -> ErrorFigures | None:
    sizes = [abs(error) for error in errors]
    if not sizes:
        return None
    return ErrorFigures(len(sizes), statistics.median(sizes), max(sizes), num_in_interval)


def _relative_error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or not measured else predicted / measured - 1
