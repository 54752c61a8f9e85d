from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.drawn_points import distinct_points


def test_few_points_are_all_drawn_even_on_one_another() -> None:
    assert distinct_points(list(range(300)), [(1.0, 1.0)] * 300) == list(range(300))


def test_of_many_points_at_one_place_the_first_is_drawn() -> None:
    places = [(float(number % 2), 0.0) for number in range(1000)]
    assert distinct_points(list(range(1000)), places) == [0, 1]


@settings(max_examples=20)
@given(st.integers(0), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_no_point_is_far_from_a_drawn_one(seed: int, width: float, height: float) -> None:
    random = Random(seed)
    places = [(width * random.betavariate(1, 3), height * random.betavariate(3, 1)) for _ in range(1000)]
    drawn = distinct_points(places, places)
    assert set(drawn) < set(places)
    for x, y in places:
        assert any(abs(x - at_x) <= width / 79 and abs(y - at_y) <= height / 39 for at_x, at_y in drawn)
