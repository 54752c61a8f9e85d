from __future__ import annotations

import pytest

from tuner.speed_ratio import Playoff, Ratio


@pytest.mark.parametrize(
    "value, error, is_tie",
    [(1.0, None, True), (1.001, None, False), (1.019, 0.01, True), (0.981, 0.01, True), (1.021, 0.01, False)],
)
def test_a_tie_is_a_difference_within_two_standard_errors(value: float, error: float | None, is_tie: bool) -> None:
    assert Ratio(value, error).is_tie is is_tie


def test_rounds_are_compared_with_themselves() -> None:
    """The machine halves its speed in the middle; the ratio of the two does not notice."""
    playoff = Playoff(trials=(3, 7), step_times_s=((1.0, 1.0, 2.0, 2.0), (1.5, 1.5, 3.0, 3.0)))
    assert playoff.ratio(3, 7) == Ratio(1.5, 0.0)
    inverse = playoff.ratio(7, 3)
    assert inverse is not None
    assert inverse.value == pytest.approx(1 / 1.5)


def test_who_took_no_part_has_no_ratio() -> None:
    playoff = Playoff(trials=(3, 7), step_times_s=((1.0,), (1.5,)))
    assert playoff.ratio(3, 4) is None
    assert playoff.ratio(4, 3) is None


def test_one_round_has_no_spread() -> None:
    assert Playoff(trials=(3, 7), step_times_s=((1.0,), (1.5,))).ratio(3, 7) == Ratio(1.5, None)


def test_one_slow_round_does_not_decide() -> None:
    ratio = Playoff(trials=(0, 1), step_times_s=((1.0, 1.0, 9.0, 1.0, 1.0), (1.1,) * 5)).ratio(0, 1)
    assert ratio is not None
    assert ratio.value == pytest.approx(1.1)
