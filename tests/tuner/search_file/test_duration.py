from __future__ import annotations

import pytest

from tuner.search_file.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 2 d ", 172800),
        ("1d2h3m4s", 93784),
        ("1.5h", 5400),
        ("0.5s", 0.5),
        ("0h5s", 5),
        ("366d", 366 * 86400),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10", r"is '10', a number without a unit; write 10s or 10m if you mean that"),
        ("1.5", r"is '1\.5', a number without a unit"),
        ("1:30", r"is '1:30'; allowed: a length of time such as 90s, 10m, 1h30m or 2d"),
        ("", r"is ''; allowed"),
        (" ", r"is ' '; allowed"),
        ("0s", r"above zero and up to 366d"),
        ("0h0m", r"above zero"),
        ("367d", r"up to 366d"),
        ("999999999d", r"up to 366d"),
        ("-5m", r"is '-5m'; allowed"),
        ("30m1h", r"is '30m1h'; allowed"),
        ("10M", r"is '10M'; allowed"),
        ("10min", r"is '10min'; allowed"),
        ("10m10m", r"is '10m10m'; allowed"),
        ("1e3s", r"is '1e3s'; allowed"),
        ("\u0661m", r"allowed"),
        ("forever", r"is 'forever'; allowed"),
    ],
)
def test_what_is_no_duration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_duration(text)
