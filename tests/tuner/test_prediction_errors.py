from __future__ import annotations

import pytest
from simulation import MIB, failure, results_of, trial

from runners.trial import Prediction, TrialResult, TrialStatus
from tuner.prediction_errors import ErrorFigures, peak_error, prediction_errors, step_time_error
from tuner.results import TrialRecord

#: The simulated step without recompute takes 1 s and its peak is 26 MiB; the reference takes 1.5 s.
REFERENCE_S = 1.5


def records(*trials: TrialResult) -> list[TrialRecord]:
    return results_of(*trials).trials


def predicted(
    number: int, *, peak_ratio: float = 1.0, time_s: float | None = None, spread_s: float = 0.1
) -> TrialResult:
    """A trial of which this much of the peak and this step time were predicted."""
    time = None if time_s is None else time_s / REFERENCE_S
    deviation = None if time_s is None else spread_s / REFERENCE_S
    prediction = Prediction(peak_memory_bytes=round(26 * MIB * peak_ratio), time=time, time_deviation=deviation)
    return trial(number, prediction=prediction)


def test_errors_are_relative_to_what_was_measured() -> None:
    (record,) = records(predicted(0, peak_ratio=1.01, time_s=0.9))
    assert peak_error(record) == pytest.approx(0.01)
    assert step_time_error(record) == pytest.approx(-0.1)


def test_median_and_largest_without_sign() -> None:
    errors = prediction_errors(records(*(predicted(i, peak_ratio=r) for i, r in enumerate((1.01, 0.96, 1.02)))))
    assert errors.peak is not None
    assert (errors.peak.num_trials, errors.peak.num_in_interval) == (3, None)
    assert (errors.peak.median, errors.peak.largest) == pytest.approx((0.02, 0.04))


def test_trials_before_any_time_was_known_do_not_count_for_times() -> None:
    errors = prediction_errors(records(predicted(0), predicted(1, time_s=0.98), predicted(2, time_s=1.05)))
    assert errors.peak is not None
    assert errors.time is not None
    assert (errors.peak.num_trials, errors.time.num_trials) == (3, 2)


@pytest.mark.parametrize("off_s, inside", [(0.16, 1), (0.17, 0), (-0.16, 1), (-0.17, 0)])
def test_the_interval_holds_what_lies_within_1_645_standard_deviations(off_s: float, inside: int) -> None:
    errors = prediction_errors(records(predicted(0, time_s=1 + off_s, spread_s=0.1)))
    assert errors.time is not None
    assert errors.time.num_in_interval == inside


def test_the_interval_is_wider_by_what_the_measurement_strays() -> None:
    noisy = predicted(0, time_s=1.17, spread_s=0.1).model_copy(update={"step_time_spread_s": 0.1})
    errors = prediction_errors(records(noisy))
    assert errors.time is not None
    assert errors.time.num_in_interval == 1


def test_what_was_not_measured_or_not_predicted_counts_for_nothing() -> None:
    lost = failure(1, TrialStatus.FAILED, "no").model_copy(update={"prediction": Prediction(peak_memory_bytes=1)})
    errors = prediction_errors(records(trial(0), lost))
    assert (errors.peak, errors.time) == (None, None)


def test_one_trial_is_enough() -> None:
    errors = prediction_errors(records(predicted(0)))
    assert errors.peak == ErrorFigures(1, 0.0, 0.0)
