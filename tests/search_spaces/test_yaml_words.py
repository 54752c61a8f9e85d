from __future__ import annotations

import math

import pytest
import yaml

from search_spaces.yaml_words import quoted, read_word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-1.5e+3", -1500.0),
        ("16e9", 16e9),
        (".5", 0.5),
        ("5.", 5.0),
        ("0010.5", 10.5),
        ("8", 8),
        ("-8", -8),
        ("+8", 8),
        ("0", 0),
        ("0x1F", 31),
        (str(2**64 - 1), 2**64 - 1),
        (str(-(2**63)), -(2**63)),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("10m", "10m"),
        ("inf", "inf"),
        ("nan", "nan"),
        ("transformer.h", "transformer.h"),
    ],
)
def test_a_word_is_read_as_it_looks(text: str, value: object) -> None:
    word = read_word(text)
    assert (word.value, type(word.value), word.problem, word.disputed) == (value, type(value), None, None)


def test_not_a_number_is_read() -> None:
    value = read_word(".nan").value
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    "text",
    ["010", "00", "-07", "08", "0o10", "0b101", "1_000", "1_", "0x_1F", "-0x1F", "1_0.5", "6.8_5e3", ".5_0"],
)
def test_a_word_that_is_one_number_or_another_is_refused(text: str) -> None:
    word = read_word(text)
    assert word.value == text
    assert word.problem is not None
    assert word.problem.startswith(f"is '{text}', which is one number, another or text")


@pytest.mark.parametrize("text", ["1" * 5000, str(2**64), str(-(2**63) - 1), "0x" + "f" * 17])
def test_whole_numbers_beyond_64_bits_are_refused(text: str) -> None:
    word = read_word(text)
    assert word.problem is not None
    assert "beyond 64 bits" in word.problem
    assert len(word.problem) < 200


@pytest.mark.parametrize("text", ["1e999", "-12e4567", "1" * 400 + "."])
def test_a_number_that_would_become_infinite_is_refused(text: str) -> None:
    word = read_word(text)
    assert word.value == text
    assert word.problem is not None
    assert "too large" in word.problem


@pytest.mark.parametrize(
    ("text", "taken_for"),
    [
        *((text, "true or false") for text in ("on", "off", "yes", "no", "Yes", "NO", "On", "OFF", "y", "n", "Y", "N")),
        *((text, "a number") for text in ("1:30", "16:9", "190:20:30", "1:30.5")),
        *((text, "a date") for text in ("2024-01-31", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59:43.10 -5")),
    ],
)
def test_a_word_that_others_read_as_something_else_stays_text_and_says_so(text: str, taken_for: str) -> None:
    word = read_word(text)
    assert (word.value, word.problem, word.disputed) == (text, None, taken_for)


def test_quoted_text_stays_on_one_short_line() -> None:
    assert quoted("a\nb\x1b[31m") == r"'a\nb\x1b[31m'"
    assert len(quoted("x" * 10_000)) == 62


def test_a_word_agrees_with_the_other_reader_or_is_marked() -> None:
    """Every short word over the letters that numbers are made of: no silent second meaning."""
    letters = "01_.eE+-:xob"
    words = [a + b + c + d for a in letters for b in letters for c in letters for d in letters]
    for text in words:
        word = read_word(text)
        try:
            other = yaml.safe_load(f"key: {text}")
        except (yaml.YAMLError, ValueError):
            continue
        if isinstance(other, dict) and isinstance(other.get("key"), int | float) and other["key"] != word.value:
            assert word.problem is not None or word.disputed is not None, text
