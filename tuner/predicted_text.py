"""What was measured of a trial, and what had been predicted of it, in the same unit: for tables and lines."""

from __future__ import annotations

from tuner.memory_size import BYTES_PER_UNIT, format_bytes
from tuner.results import TrialRecord
from tuner.step_time_text import format_step_time, in_unit_of


def measured_peak(trial: TrialRecord) -> str:
    """``9.5 MiB``; empty where it was not measured."""
    return "" if trial.peak_memory_bytes is None else format_bytes(trial.peak_memory_bytes)


def predicted_peak(trial: TrialRecord) -> str:
    """``9.5``, in the unit of the measured peak; with a unit of its own where there is none, empty without."""
    predicted = trial.predicted_peak_memory_bytes
    if predicted is None:
        return ""
    if trial.peak_memory_bytes is None:
        return format_bytes(predicted)
    unit = format_bytes(trial.peak_memory_bytes).split()[-1]
    return f"{predicted}" if unit == "B" else f"{predicted / BYTES_PER_UNIT[unit]:.1f}"


def measured_step_time(trial: TrialRecord) -> str:
    """``31.2 ms``; empty where it was not measured."""
    return "" if trial.step_time_s is None else format_step_time(trial.step_time_s)


def predicted_step_time(trial: TrialRecord) -> str:
    """``30.5 +-1.2``, with one standard deviation, in the unit of the measured time; empty where one is missing."""
    time_s, spread_s = trial.predicted_step_time_s, trial.predicted_step_time_spread_s
    if time_s is None or trial.step_time_s is None:
        return ""
    spread = "" if spread_s is None else f" +-{in_unit_of(trial.step_time_s, spread_s)}"
    return f"{in_unit_of(trial.step_time_s, time_s)}{spread}"


def beside(measured: str, predicted: str) -> str:
    """``9.5 MiB (predicted 9.5)``; without the brackets where nothing was predicted."""
    return f"{measured} (predicted {predicted})" if measured and predicted else measured
