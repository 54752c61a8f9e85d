from __future__ import annotations

import json

import pytest
from simulation import MIB, results_of, trial

from runners.trial import Prediction
from tuner.report.predictions import error_rows, peak_figure, step_time_figure
from tuner.summary import summarize

PREDICTION = Prediction(peak_memory_bytes=25 * MIB, time=0.6, time_deviation=0.04)
RESULTS = results_of(trial(0, prediction=PREDICTION), trial(1, "block"))


def test_peaks_lie_over_their_measurements_beside_the_diagonal() -> None:
    figure = peak_figure(RESULTS.trials, RESULTS.memory_cap_bytes)
    assert figure is not None
    diagonal, points, _ = json.loads(figure.data)["data"]
    assert diagonal["x"] == diagonal["y"] == [25.0, 26.0]
    assert (points["x"], points["y"]) == ([26.0], [25.0]), "trial 1 was not predicted"
    assert points["text"] == ["<b>none @2x1</b><br>predicted -3.85% against measured<br>trial 0"]


def test_step_times_have_the_deviation_of_their_prediction() -> None:
    figure = step_time_figure(RESULTS.trials)
    assert figure is not None
    drawn = json.loads(figure.data)
    points = drawn["data"][1]
    assert (points["x"], points["y"]) == ([1.0], [pytest.approx(0.9)])
    assert points["error_y"]["array"] == [pytest.approx(0.06)]
    assert drawn["layout"]["xaxis"]["title"]["text"] == "measured step time (s)"


def test_errors_in_words() -> None:
    peak, time = error_rows(summarize(RESULTS).prediction_errors)
    assert (peak.quantity, peak.num_trials, peak.median, peak.in_interval) == ("peak memory", "1", "3.85%", "")
    assert (time.quantity, time.largest, time.in_interval) == ("step time", "10.00%", "0 of 1")


def test_nothing_predicted_is_nothing_to_draw() -> None:
    results = results_of(trial(0))
    assert peak_figure(results.trials, results.memory_cap_bytes) is None
    assert step_time_figure(results.trials) is None
    assert error_rows(summarize(results).prediction_errors) == []
