from __future__ import annotations

import pytest

from tuner.step_time_text import format_step_time, in_unit_of


@pytest.mark.parametrize(
    "time_s, text",
    [
        (0.000123, "0.12 ms"),
        (0.00312, "3.12 ms"),
        (0.0312, "31.2 ms"),
        (0.3124, "312 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.0, "1.00 s"),
        (9.996, "10.0 s"),
        (123.4, "123 s"),
        (12345.0, "12345 s"),
    ],
)
def test_about_three_digits_and_a_unit(time_s: float, text: str) -> None:
    assert format_step_time(time_s) == text


def test_other_figures_follow_the_first_one() -> None:
    assert in_unit_of(0.0312, 0.0021) == "2.1"
    assert in_unit_of(0.0312, 2.0) == "2000.0"
    assert in_unit_of(1.64, 0.05) == "0.05"
