from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.measure.spread import Center, center_of, center_of_ratios, median_standard_error

Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "normal": lambda rng: rng.gauss(0.0, 0.03),
    "two humps": lambda rng: rng.choice((-0.05, 0.05)) + rng.gauss(0.0, 0.01),
    "disturbed now and then": lambda rng: rng.gauss(0.0, 0.25 if rng.random() < 0.2 else 0.02),
}
noises = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())


class TestCenter:
    @noises
    @pytest.mark.parametrize("count", [5, 6, 10, 30])
    def test_truth_lies_within_two_errors_in_about_95_of_100_series(self, noise: Noise, count: int) -> None:
        rng = random.Random(0)
        centers = [center_of([noise(rng) for _ in range(count)]) for _ in range(1000)]
        hits = sum(abs(center.value) <= 2 * center.standard_error for center in centers)
        assert hits >= 920

    @noises
    def test_stopping_when_the_error_is_small_does_not_break_the_promise(self, noise: Noise) -> None:
        """What a measurement does: it stops at the first look that finds an error of one per cent or less."""
        rng = random.Random(1)
        hits = 0
        for _ in range(300):
            values = [noise(rng) for _ in range(4)]
            center = Center(math.nan, math.inf)
            while center.standard_error > 0.01 and len(values) < 60:
                values.append(noise(rng))
                center = center_of(values)
            hits += abs(center.value) <= 2 * center.standard_error
        assert hits >= 0.9 * 300

    def test_needs_fewer_values_than_the_median(self) -> None:
        rng = random.Random(0)
        series = [[rng.gauss(10.0, 1.0) for _ in range(15)] for _ in range(1000)]
        scatter = statistics.stdev(center_of(values).value for values in series)
        assert scatter < 0.88 * statistics.stdev(statistics.median(values) for values in series)

    def test_long_series_is_its_median(self) -> None:
        values = [float(value) for value in range(301)]
        assert center_of(values) == Center(150.0, median_standard_error(values))

    def test_few_outliers_do_not_matter(self) -> None:
        assert center_of([1.0] * 9 + [50.0, 80.0]).value == 1.0

    def test_equal_values_are_known_exactly(self) -> None:
        assert center_of([2.5] * 7) == Center(2.5, 0.0)

    def test_one_value_has_no_error(self) -> None:
        center = center_of([3.0])
        assert center.value == 3.0
        assert math.isnan(center.standard_error)

    def test_no_value_has_no_middle(self) -> None:
        with pytest.raises(ValueError, match="an empty series has no middle"):
            center_of([])

    @given(
        st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=2, max_size=20),
        st.randoms(use_true_random=False),
    )
    def test_order_does_not_matter_and_the_center_lies_inside(self, values: list[float], rng: random.Random) -> None:
        center = center_of(values)
        assert min(values) <= center.value <= max(values)
        assert center.standard_error >= 0
        shuffled = list(values)
        rng.shuffle(shuffled)
        assert center_of(shuffled) == center


class TestCenterOfRatios:
    @given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20))
    def test_inverse_ratios_have_the_inverse_center(self, ratios: list[float]) -> None:
        center, inverse = center_of_ratios(ratios), center_of_ratios([1 / ratio for ratio in ratios])
        assert inverse.value == pytest.approx(1 / center.value)
        assert inverse.standard_error / inverse.value == pytest.approx(center.standard_error / center.value, abs=1e-9)


class TestMedianStandardError:
    @pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 10, 25, 50])
    def test_is_about_the_scatter_of_medians_of_normal_values(self, count: int) -> None:
        rng = random.Random(0)
        samples = [[rng.gauss(10.0, 1.0) for _ in range(count)] for _ in range(3000)]
        scatter = statistics.stdev(statistics.median(sample) for sample in samples)
        estimate = statistics.fmean(median_standard_error(sample) for sample in samples)
        assert 0.75 * scatter < estimate < 1.35 * scatter

    @pytest.mark.parametrize("count", [5, 6, 11, 30])
    def test_values_with_two_humps_are_not_called_steady(self, count: int) -> None:
        rng = random.Random(0)
        for _ in range(20):
            values = [1.0 + index % 2 + rng.uniform(0.0, 0.01) for index in range(count)]
            assert median_standard_error(values) > 0.1

    def test_single_outlier_does_not_matter_among_many(self) -> None:
        assert median_standard_error([1.0] * 9 + [50.0]) == 0.0

    @pytest.mark.parametrize("values", [[], [1.0]])
    def test_fewer_than_two_values_have_none(self, values: list[float]) -> None:
        assert math.isnan(median_standard_error(values))

    def test_two_values_are_known_to_half_their_distance(self) -> None:
        assert median_standard_error([3.0, 1.0]) == pytest.approx(0.5 * 2.0)
