from __future__ import annotations

import math
import random
import statistics

import pytest

from runners.measure.spread import median_standard_error


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 10, 25, 50])
def test_is_about_the_scatter_of_medians_of_normal_values(count: int) -> None:
    rng = random.Random(0)
    samples = [[rng.gauss(10.0, 1.0) for _ in range(count)] for _ in range(3000)]
    scatter = statistics.stdev(statistics.median(sample) for sample in samples)
    estimate = statistics.fmean(median_standard_error(sample) for sample in samples)
    assert 0.75 * scatter < estimate < 1.35 * scatter


@pytest.mark.parametrize("count", [5, 6, 11, 30])
def test_values_with_two_humps_are_not_called_steady(count: int) -> None:
    rng = random.Random(0)
    for _ in range(20):
        values = [1.0 + index % 2 + rng.uniform(0.0, 0.01) for index in range(count)]
        assert median_standard_error(values) > 0.1


def test_single_outlier_does_not_matter_among_many() -> None:
    assert median_standard_error([1.0] * 9 + [50.0]) == 0.0


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_values_have_none(values: list[float]) -> None:
    assert math.isnan(median_standard_error(values))


def test_two_values_are_known_to_half_their_distance() -> None:
    assert median_standard_error([3.0, 1.0]) == pytest.approx(0.5 * 2.0)
