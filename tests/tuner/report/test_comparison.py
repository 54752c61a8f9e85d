from __future__ import annotations

from simulation import failure, results_of, trial

from runners.trial import TrialStatus
from tuner.report.comparison import Comparison, compare_trials
from tuner.results import StudyResults
from tuner.summary import summarize


def compared(results: StudyResults) -> Comparison:
    comparison = compare_trials(results, summarize(results))
    assert comparison is not None
    return comparison


def rows(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {row.title: row.values for row in comparison.rows}


def test_the_winner_stands_beside_plain_training_every_block_and_the_baseline() -> None:
    comparison = compared(results_of(trial(0), trial(1, "mlp"), trial(2, "none", 1), trial(3, "block")))
    assert comparison.titles == ("Winner", "Plain training that fits", "Every block recomputed", "Baseline")
    values = rows(comparison)
    assert values["trial"] == ("1", "2", "3", "0")
    assert values["winner's speed against it"] == ("", "1.34x +-0.00", "1.16x +-0.00", "0.89x +-0.00")
    assert values["peak"][0] == "18.0 MiB (90% of the cap)"
    assert values["recompute"] == ("120 ms", "500 ms", "300 ms", "0")
    assert values["proof"] == ("MATCH",) * 4
    assert values["feasible"] == ("yes", "yes", "yes", "no: its peak is 30.0% over the cap")


def test_one_trial_can_be_several_of_them() -> None:
    assert compared(results_of(trial(0), trial(1, "block"))).titles == ("Winner, every block recomputed", "Baseline")


def test_differences_within_the_spread_are_called_ties() -> None:
    timed = {"relative_speed": 1.0, "relative_speed_spread": 0.01}
    comparison = compared(results_of(trial(0, "none", 1, **timed), trial(1, "block", 2, **timed)))
    assert "1.00x +-0.01 (tie)" in rows(comparison)["winner's speed against it"]


def test_without_a_winner_what_was_tried_is_shown_without_ratios() -> None:
    comparison = compared(results_of(trial(0), failure(1, TrialStatus.FAILED, "broken"), cap_bytes=2**20))
    assert comparison.titles == ("Baseline",)
    assert "winner's speed against it" not in rows(comparison)


def test_nothing_tried_is_nothing_to_compare() -> None:
    results = results_of()
    assert compare_trials(results, summarize(results)) is None
