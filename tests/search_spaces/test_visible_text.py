from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.visible_text import visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n\tb", "a\n\tb"),
        ("\x1b[2J\x1b]0;title\x07", r"\u001b[2J\u001b]0;title\u0007"),
        ("\x9b31m\r", r"\u009b31m\u000d"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("\ud800", r"\ud800"),
        ("caf\u00e9 \u4e2d\u6587 \u00a0\U0001f600", "caf\u00e9 \u4e2d\u6587 \u00a0\U0001f600"),
    ],
)
def test_only_what_a_terminal_would_obey_is_escaped(text: str, expected: str) -> None:
    assert visible(text) == expected
    assert visible(expected) == expected


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_a_json_document_stays_the_same_document(text: str) -> None:
    assert json.loads(visible(json.dumps([text], ensure_ascii=False))) == [text]
