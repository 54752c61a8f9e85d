from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.measure.speed_comparison import calm_rounds, compare_speeds
from runners.measure.spread import Center

times = st.floats(0.1, 10)
rounds = st.lists(st.tuples(times, times), min_size=1, max_size=40)


def under_load(rng: random.Random, other_s: float, count: int) -> tuple[list[float], list[float], list[list[float]]]:
    """Rounds on a machine that a neighbour loads half of the time, some rounds in a row."""
    series: list[list[float]] = [[], []]
    shares: list[list[float]] = [[], []]
    is_loaded = rng.random() < 0.5
    for _ in range(count):
        if rng.random() > 0.8:
            is_loaded = rng.random() < 0.5
        for index, work_s in enumerate((1.0, other_s)):
            waited = rng.uniform(0.3, 1.2) if is_loaded else 0.0
            busy_s = work_s * (1 + rng.gauss(0, 0.02))
            series[index].append(busy_s + waited * work_s)
            shares[index].append(busy_s / series[index][-1])
    return series[0], series[1], shares


class TestCalmRounds:
    def test_those_in_which_nobody_else_took_the_processor(self) -> None:
        mine = [1.0, 0.5, 1.0, 0.99, 1.0, 1.0, 0.95, 1.0, 1.0, 1.0]
        theirs = [1.8, 1.8, 0.9, 1.8, 1.8, 1.75, 1.8, 1.0, 1.8, 1.8]
        assert calm_rounds(10, [mine, theirs]) == [0, 3, 4, 5, 6, 8, 9]

    def test_all_where_too_few_are_calm(self) -> None:
        assert calm_rounds(6, [[1.0, 1.0, 1.0, 1.0, 0.5, 0.5]]) == [0, 1, 2, 3, 4, 5]

    def test_all_where_nothing_is_known(self) -> None:
        assert calm_rounds(7, []) == [0, 1, 2, 3, 4, 5, 6]

    def test_steps_that_use_little_of_the_processor_are_calm_as_others_are(self) -> None:
        assert len(calm_rounds(8, [[0.1] * 8, [1.9] * 8])) == 8

    @pytest.mark.parametrize("count", [1, 2, 5, 9])
    def test_one_freak_of_the_clock_does_not_make_all_others_disturbed(self, count: int) -> None:
        assert len(calm_rounds(count, [[1.0] * (count - 1) + [1.3]])) == count


class TestCompareSpeeds:
    @given(rounds)
    def test_the_other_way_round_is_the_inverse(self, pairs: Sequence[tuple[float, float]]) -> None:
        mine, theirs = zip(*pairs, strict=True)
        assert compare_speeds(mine, theirs).value == pytest.approx(1 / compare_speeds(theirs, mine).value)

    def test_disturbed_rounds_do_not_count(self) -> None:
        mine, theirs = [1.0] * 6 + [9.0] * 4, [1.5] * 10
        assert compare_speeds(mine, theirs, [[1.0] * 6 + [0.2] * 4, [1.0] * 10]) == Center(pytest.approx(1.5), 0.0)

    def test_no_round_is_refused(self) -> None:
        with pytest.raises(ValueError, match="an empty series has no middle"):
            compare_speeds([], [])

    def test_truth_lies_within_two_errors_under_a_load_that_comes_and_goes(self) -> None:
        hits = sum(
            abs(speed.value - 1.05) <= 2 * speed.standard_error
            for speed in (compare_speeds(*under_load(random.Random(seed), 1.05, 30)) for seed in range(300))
        )
        assert hits >= 0.92 * 300

    def test_is_known_far_better_than_by_all_rounds(self) -> None:
        errors: list[float] = []
        errors_of_all: list[float] = []
        for seed in range(100):
            mine, theirs, shares = under_load(random.Random(seed), 1.05, 30)
            errors.append(compare_speeds(mine, theirs, shares).standard_error)
            errors_of_all.append(compare_speeds(mine, theirs).standard_error)
        assert statistics.median(errors) < 0.5 * statistics.median(errors_of_all)

    def test_the_one_that_scatters_more_does_not_gain_by_it(self) -> None:
        """Its own scatter is no neighbour's doing, and its fastest steps are not what it takes."""
        rng, values = random.Random(0), []
        for _ in range(100):
            steady, scattered = [[math.exp(rng.gauss(0, sigma)) for _ in range(20)] for sigma in (0.01, 0.1)]
            values.append(compare_speeds(steady, scattered, [[1.0] * 20] * 2).value)
        assert sum(values) / 100 == pytest.approx(1.0, abs=0.01)
