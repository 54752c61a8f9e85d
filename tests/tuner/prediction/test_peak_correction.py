"""What measured peaks teach about predicted ones."""

from __future__ import annotations

import pytest

from tuner.prediction.peak_correction import PeakCorrection, PeakPair


def test_before_any_measurement_a_per_cent_is_left() -> None:
    correction = PeakCorrection.fit([], prior_error=0.002)
    assert correction.ratio == 1.0
    assert correction.worst_ratio == pytest.approx(1.012)


def test_exact_predictions_leave_next_to_nothing() -> None:
    correction = PeakCorrection.fit([PeakPair(100, 100), PeakPair(250, 250)], prior_error=0.0)
    assert correction.worst_ratio == 1
    assert 1 < PeakCorrection.fit([PeakPair(100, 100)], prior_error=0.0).worst_ratio < 1.001


def test_a_steady_overhead_is_taken_off_the_cap() -> None:
    pairs = [PeakPair(100, 110), PeakPair(200, 220), PeakPair(300, 330)]
    correction = PeakCorrection.fit(pairs, prior_error=0.0)
    assert correction.ratio == pytest.approx(1.1)
    assert correction.worst_ratio == pytest.approx(1.1)


def test_few_ratios_that_agree_may_do_so_by_chance() -> None:
    one, two, three = (PeakCorrection.fit([PeakPair(100, 102)] * count, prior_error=0.0) for count in (1, 2, 3))
    assert one.worst_ratio > two.worst_ratio > three.worst_ratio == pytest.approx(1.02)
    assert one.worst_ratio == pytest.approx(1.02 * 1.01)


def test_an_unsteady_overhead_leaves_as_much_room_as_it_varies() -> None:
    pairs = [PeakPair(100, 104), PeakPair(100, 110), PeakPair(100, 98)]
    correction = PeakCorrection.fit(pairs, prior_error=0.0)
    assert correction.ratio == pytest.approx(1.04)
    assert correction.worst_ratio == pytest.approx(1.1 * 1.12)


def test_a_refusal_says_that_the_peak_is_above_the_cap() -> None:
    correction = PeakCorrection.fit([PeakPair(900, 1_000, refused=True)], prior_error=0.0)
    assert correction.ratio == 1.0
    assert correction.worst_ratio > 1_000 / 900


def test_a_refusal_that_measured_ratios_explain_is_no_news() -> None:
    pairs = [*(PeakPair(size, 1.1 * size) for size in (100, 200, 300)), PeakPair(950, 1_000, refused=True)]
    assert PeakCorrection.fit(pairs, prior_error=0.0).worst_ratio == pytest.approx(1.1)


def test_ratios_that_lie_far_apart_make_predictions_vague_and_rule_little_out() -> None:
    vague = PeakCorrection.fit([PeakPair(100, 310)], prior_error=0.0)
    assert vague.is_vague
    assert vague.best_ratio == 1.0
    pairs = [PeakPair(100, 310), PeakPair(100, 170), PeakPair(100, 200)]
    assert PeakCorrection.fit(pairs, prior_error=0.0).best_ratio == pytest.approx(1.7)
    assert not PeakCorrection.fit([PeakPair(100, 102)] * 2, prior_error=0.002).is_vague
