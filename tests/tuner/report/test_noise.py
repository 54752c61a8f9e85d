from __future__ import annotations

import json
from typing import Any

from simulation import results_of, trial

from tuner.report.figure import PageFigure
from tuner.report.noise import drift_figure, noise_facts, playoff_rows, spread_figure
from tuner.speed_ratio import Playoff


def content(figure: PageFigure | None) -> dict[str, Any]:
    assert figure is not None
    data: dict[str, Any] = json.loads(figure.data)
    return data


def test_steps_spread_and_drift_over_all_trials() -> None:
    results = results_of(
        trial(0, num_steps=5, relative_speed_spread=0.015, reference_step_time_s=1.5),
        trial(1, "block", num_steps=9, relative_speed=1.0, relative_speed_spread=0.04, reference_step_time_s=1.8),
    )
    assert noise_facts(results) == [
        ("steps per trial", "7 in the median, 5 to 9"),
        ("spread of a trial's speed", "2.5% in the median, 4.0% at most (trial 1)"),
        ("the reference's step", "1.50 s to 1.80 s: a factor of 1.20"),
    ]
    assert noise_facts(results_of()) == []


def test_the_reference_is_drawn_from_trial_to_trial() -> None:
    trials = results_of(trial(0), trial(1, "block", reference_step_time_s=3.0), trial(2, "mlp")).trials
    drawn = content(drift_figure(trials))
    (trace,) = drawn["data"]
    assert (trace["x"], trace["y"]) == ([0, 1, 2], [1.5, 3.0, 1.5])
    assert drawn["layout"]["xaxis"]["dtick"] == 1, "there is no trial 1.5"
    assert trace["text"][1] == "<b>trial 1</b><br>reference step 3.00 s<br>2026-01-02T03:04:05+00:00"
    assert drift_figure(trials[:1]) is None, "one point shows no drift"


def test_a_long_study_keeps_its_slow_moments() -> None:
    trials = results_of(
        *(trial(n, "block", reference_step_time_s=9.0 if n == 434 else 1.0) for n in range(1000))
    ).trials
    (trace,) = content(drift_figure(trials))["data"]
    assert len(trace["x"]) == 500
    assert (434, 9.0) in zip(trace["x"], trace["y"], strict=True)


def test_spread_is_drawn_beside_the_one_that_was_asked_for() -> None:
    search = {"measurement": {"relative_spread": 0.02}}
    results = results_of(trial(0, relative_speed=1.0, relative_speed_spread=0.03), search=search)
    drawn = content(spread_figure(results))
    assert drawn["data"][0]["y"] == [3.0]
    assert [(shape["y0"], shape["y1"]) for shape in drawn["layout"]["shapes"]] == [(2.0, 2.0)]
    assert spread_figure(results_of()) is None


def test_the_playoff_says_who_ties_and_why_a_faster_one_lost() -> None:
    times_s = ((0.5,) * 5, (1.0, 1.02, 0.98, 1.01, 0.99), (1.0,) * 5, (2.0,) * 5)
    playoff = Playoff(trials=(0, 2, 1, 3), step_times_s=times_s)
    results = results_of(trial(0), trial(1, "block"), trial(2, "mlp"), trial(3, "block", 1), playoff=playoff)
    rows = {row.number: (row.winner_ratio, row.outcome) for row in playoff_rows(results)}
    assert rows == {
        0: ("0.50x +-0.00", "faster; not feasible: its peak is 30.0% over the cap"),
        1: ("", "winner"),
        2: ("1.00x +-0.01", "tie: no difference beyond the spread"),
        3: ("2.00x +-0.00", "slower"),
    }
    assert playoff_rows(results_of(trial(0))) == []
