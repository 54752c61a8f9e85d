"""The model of time on made-up truths: how far off it is, and whether its intervals are honest."""

from __future__ import annotations

import made_up
import numpy as np
import pytest

from tuner.prediction.placement_features import Label, PlacementFeatures
from tuner.prediction.time_model import Observation, TimeModel, TimePrior

SIZES = (8, 4, 2, 1)
PRICES = np.array([0.1, 0.12, 0.22, 0.33])
LABELS = [Label(0, f"unit{number}") for number in range(4)]
PRIOR = TimePrior(SIZES, LABELS, PRICES)


class Truth:
    """Times of random placements of one list, each under one or two labels.

    Args:
        noise: Relative standard deviation of a measurement.
    """

    def __init__(self, seed: int, noise: float, *, deviation: float = 0.05, tilt: float = 0.01) -> None:
        self.generator = np.random.default_rng(seed)
        self.noise = noise
        generator = self.generator
        self.base = 3.0 * (1 + generator.uniform(0, 0.3) / np.array(SIZES)) * np.exp(generator.normal(0, 0.03, 4))
        prices = PRICES * generator.uniform(0.6, 1.4, 4)
        self.prices = prices * (1 + generator.normal(0, deviation, (4, 4)))
        self.tilts = generator.normal(0, tilt, 4)

    def some(self, number: int) -> list[Observation]:
        return [self._one() for _ in range(number)]

    def _one(self) -> Observation:
        generator = self.generator
        batch = int(generator.integers(4))
        first, second = generator.choice(4, 2, replace=False)
        split, end = np.sort(generator.integers(0, 13, 2)) / 12
        shares, tilts = np.zeros(4), np.zeros(4)
        shares[first], tilts[first] = split, split * (split - 1)
        shares[second], tilts[second] = end - split, (end - split) * (split + end - 1)
        time = self.base[batch] * (1 + shares @ self.prices[batch] + tilts @ self.tilts)
        measured = time * np.exp(generator.normal(0, self.noise))
        return Observation(batch, shares, tilts, float(measured), float(self.noise * measured))


def predict(model: TimeModel, observations: list[Observation]) -> tuple[np.ndarray, np.ndarray]:
    return model.predict(
        [o.batch_index for o in observations],
        np.array([o.shares for o in observations]),
        np.array([o.tilts for o in observations]),
    )


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_after_calibration_the_median_error_is_small_and_intervals_hold_nine_in_ten(noise: float) -> None:
    errors, inside, deviations = [], [], []
    for seed in range(20):
        truth = Truth(seed, noise)
        model = TimeModel(PRIOR, truth.some(12))
        held_out = truth.some(100)
        mean, deviation = predict(model, held_out)
        measured = np.array([o.time for o in held_out])
        spread = np.hypot(deviation, noise * mean)
        errors += list(np.abs(mean / measured - 1))
        inside += list(np.abs(measured - mean) < 1.645 * spread)
        deviations += list(deviation / mean)
    assert np.median(errors) <= 0.03
    assert 0.85 <= np.mean(inside) <= 0.995
    # Nor are they honest by being wide.
    assert np.median(deviations) <= 0.012 + 0.9 * noise


def test_more_measurements_make_it_surer_and_better() -> None:
    truth = Truth(0, 0.005)
    few = TimeModel(PRIOR, truth.some(4))
    many = TimeModel(PRIOR, truth.some(60))
    held_out = truth.some(50)
    (few_mean, few_deviation), (many_mean, many_deviation) = predict(few, held_out), predict(many, held_out)
    measured = np.array([o.time for o in held_out])
    assert np.median(many_deviation) < 0.5 * np.median(few_deviation)
    assert np.median(np.abs(many_mean / measured - 1)) < np.median(np.abs(few_mean / measured - 1))


@pytest.mark.parametrize("unit", [1e-3, 1.0, 3600.0])
def test_the_unit_of_time_does_not_matter(unit: float) -> None:
    truth = Truth(1, 0.01)
    seen, held_out = truth.some(10), truth.some(5)
    scaled = [Observation(o.batch_index, o.shares, o.tilts, o.time * unit, o.standard_error * unit) for o in seen]
    (mean, deviation) = predict(TimeModel(PRIOR, seen), held_out)
    (mean_scaled, deviation_scaled) = predict(TimeModel(PRIOR, scaled), held_out)
    np.testing.assert_allclose(mean_scaled, mean * unit, rtol=1e-6)
    np.testing.assert_allclose(deviation_scaled, deviation * unit, rtol=1e-6)


def test_draws_have_the_mean_and_the_spread_of_the_predictions() -> None:
    truth = Truth(2, 0.01)
    model = TimeModel(PRIOR, truth.some(8))
    held_out = truth.some(5)
    mean, deviation = predict(model, held_out)
    draws = model.draw(np.random.default_rng(0), 3_000)
    for index, one in enumerate(held_out):
        times = np.array([draw.times(one.batch_index, one.shares[None], one.tilts[None])[0] for draw in draws])
        lack = np.array([draw.lack_of_fit for draw in draws])
        times = times * (1 + lack * np.random.default_rng(1).standard_normal(len(times)))
        assert times.mean() == pytest.approx(mean[index], rel=0.02)
        assert times.std() == pytest.approx(deviation[index], rel=0.15)


def test_without_measurements_it_says_what_the_prior_says() -> None:
    model = TimeModel(PRIOR, [])
    shares = np.eye(4)
    mean, deviation = model.predict([0, 1, 2, 3], shares, np.zeros((4, 4)))
    np.testing.assert_allclose(mean, PRIOR.base_means * (1 + PRICES), rtol=1e-9)
    assert (deviation > 0.1).all()


def test_of_sizes_that_nothing_is_known_of_the_larger_is_expected_to_be_faster_by_a_hair() -> None:
    base = TimePrior([2, 16, 4], LABELS[:1], PRICES[:1]).base_means
    assert base[1] == 1 < base[2] < base[0] < 1.01


def test_made_up_weights_are_reproduced_from_many_exact_times() -> None:
    choices = made_up.made_up_choices([6], actions=("none", "mlp", "block"))
    features = PlacementFeatures(choices)
    weights = made_up.made_up_weights(features, 3)
    sizes = [batch.micro_batch_size for batch in features.batches]
    generator = np.random.default_rng(0)
    observations = []
    for _ in range(120):
        batch = int(generator.integers(len(sizes)))
        shares = generator.dirichlet(np.ones(3))[:2]
        tilts = np.zeros(2)
        time = float(weights.times(batch, shares[None], tilts[None])[0])
        observations.append(Observation(batch, shares, tilts, time, 0.0))
    prices = np.array([0.1, 0.3])
    model = TimeModel(TimePrior(sizes, LABELS[:2], prices), observations)
    mean, _ = predict(model, observations)
    np.testing.assert_allclose(mean, [o.time for o in observations], rtol=0.01)
