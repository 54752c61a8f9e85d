from __future__ import annotations

import pytest

from tuner.report.stacked_bars import BarContent, Part, StackedBars, stack_bars


def stacked(*amounts: tuple[float, float], mark: float | None = None) -> StackedBars:
    contents = [
        BarContent("bar", "", f"{a + b:g} s in all", (Part("a", "sky", a), Part("b", "rose", b))) for a, b in amounts
    ]
    return stack_bars(contents, text=lambda amount: f"{amount:g} s", mark=mark, mark_label="cap")


def test_all_bars_are_on_one_scale() -> None:
    long, short = stacked((60.0, 40.0), (10.0, 0.0)).bars
    assert [part.width_pct for part in long.parts] == [pytest.approx(60 / 1.02), pytest.approx(40 / 1.02)]
    assert [part.width_pct for part in short.parts] == [pytest.approx(10 / 1.02)], "nothing has no part"
    assert (long.total, short.total) == ("100 s in all", "10 s in all")


def test_a_mark_beyond_all_bars_is_still_within_the_scale() -> None:
    bars = stacked((60.0, 40.0), mark=200.0)
    assert bars.mark is not None
    assert bars.mark.at_pct == pytest.approx(100 / 1.02)
    assert sum(part.width_pct for part in bars.bars[0].parts) == pytest.approx(50 / 1.02)


def test_parts_say_their_amount_where_there_is_room_and_always_on_hover() -> None:
    wide, narrow = stacked((97.0, 3.0)).bars[0].parts
    assert (wide.label, wide.tip) == ("97 s", "a 97 s, 97%")
    assert (narrow.label, narrow.tip) == ("", "b 3 s, 3%")


def test_legend_names_parts_that_occur_in_some_bar() -> None:
    assert stacked((1.0, 0.0), (1.0, 0.0)).legend == (("a", "sky"),)
    assert stacked((0.0, 1.0), (1.0, 0.0)).legend == (("a", "sky"), ("b", "rose"))


def test_bars_of_nothing_are_no_error() -> None:
    assert stacked((0.0, 0.0)).bars[0].parts == ()
