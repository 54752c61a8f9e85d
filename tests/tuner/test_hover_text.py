from __future__ import annotations

from tuner.hover_text import hover_text, shortened


def test_the_first_line_is_bold_and_long_ones_are_broken() -> None:
    text = hover_text(["block @2x4", "word " * 12])
    assert text == f"<b>block @2x4</b><br>{'word ' * 8}word<br>{'word ' * 2}word"


def test_what_users_wrote_is_no_markup() -> None:
    assert hover_text(["<b>", "a & <script>"]) == "<b>&lt;b&gt;</b><br>a &amp; &lt;script&gt;"


def test_a_placement_of_a_hundred_regions_does_not_cover_the_page() -> None:
    policy = " ".join(f"mlp[{block}]" for block in range(100))
    assert hover_text([policy]).count("<br>") <= 6


def test_short_text_stays_as_it_is() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."
