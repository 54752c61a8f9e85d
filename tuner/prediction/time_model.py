"""Step time as a sum: a base per micro-batch size, plus a price per share of blocks that recompute. With uncertainty.

The time of a step at micro-batch b under a placement is modelled as::

    time = base[b] * (1 + sum over labels of (price + deviation[b]) * share + tilt * tilted_share)

and everything unknown has a prior: bases of neighbouring sizes are alike, prices are near what the FLOPs say,
deviations and tilts are small. How small, how much sizes differ, and how far single placements stray from any such sum
(the lack of fit), is not known either: a few settings of these are fitted side by side and weighted by how well each
explains what was measured. Where little was measured the settings disagree, and the intervals are as wide as they ought
to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, solve_triangular

from tuner.prediction.placement_features import FloatArray, Label
from tuner.prediction.price_prior import price_covariance

#: Lack of fit, relative to the step time, and the prior weight of each value.
_LACK_OF_FIT = {0.001: 0.2, 0.003: 0.25, 0.01: 0.3, 0.02: 0.15, 0.05: 0.1}
#: Standard deviation of a price between micro-batch sizes, relative to the price (plus a fifth of a plain step).
_DEVIATION = (0.01, 0.05)
#: Standard deviation of the tilt of a price along the list, in plain steps.
_TILT = (0.001, 0.05)
#: Standard deviations of the bases, relative to a plain step: of all together, and of each size on its own.
_BASE_COMMON, _BASE_OWN = 0.3, 0.03
#: How much the micro-batch size matters, and the prior weight of each value: standard deviations of the bases, in plain
#: steps, and of what prices drift by from the largest size down, relative to the price (plus a fifth of a plain step),
#: over `_LENGTH_OCTAVES`. Where kernels are large it matters little; where they are small, what surrounds them takes
#: most of the time, the more so the smaller the micro-batch.
_SIZE_EFFECT = {(0.15, 0.0): 0.7, (1.5, 0.7): 0.3}
#: What a plain step is expected to take longer for each octave that its micro-batch is smaller, in plain steps: little
#: enough to mean no more than that the larger one comes first.
_SLOWER_PER_OCTAVE = 0.002
#: Octaves of micro-batch size over which bases and prices stay alike.
_LENGTH_OCTAVES = 3.0
#: How much of the size's effect on prices all labels share.
_SHARED_BY_LABELS = 0.8
#: Settings with less weight than this are passed over.
_LEAST_WEIGHT = 1e-4


@dataclass(frozen=True)
class Observation:
    """One measured trial.

    Attributes:
        batch_index: Which micro-batch size.
        shares: Shape (num_labels,).
        tilts: Shape (num_labels,).
        time: Of a step, in any unit that is the same for all.
        standard_error: Of ``time``, in the same unit; 0 where it is not known.
    """

    batch_index: int
    shares: FloatArray
    tilts: FloatArray
    time: float
    standard_error: float


@dataclass(frozen=True)
class TimeWeights:
    """One set of numbers that the model may have.

    Attributes:
        base: Time of a plain step by micro-batch size, shape (num_batches,).
        prices: What recomputing all blocks of a list adds, by label, shape (num_batches, num_labels).
        tilts: What it adds more for the last than for the middle block, shape as ``prices``.
        lack_of_fit: Standard deviation of a placement's true time around the sum, relative to it.
    """

    base: FloatArray
    prices: FloatArray
    tilts: FloatArray
    lack_of_fit: float

    def times(self, batch_index: int, shares: FloatArray, tilts: FloatArray) -> FloatArray:
        """Times of placements at one micro-batch size, shape (num_placements,)."""
        times: FloatArray = self.base[batch_index] + shares @ self.prices[batch_index] + tilts @ self.tilts[batch_index]
        return times


@dataclass(frozen=True)
class _PriorSetting:
    """The prior under one setting of size effect, deviation and tilt: inverse and size of its covariance."""

    precision: FloatArray
    half_log_determinant: float


class TimePrior:
    """What is known before anything was measured.

    Args:
        micro_batch_sizes: In samples, in the order of ``batch_index``.
        labels: What prices are of.
        price_means: What recomputing all blocks of a list is expected to add, in plain steps, shape (num_labels,).
        base_means: How long plain steps of each size are expected to be beside one another, shape (num_batches,); None
            expects those of smaller ones to be a little longer.
    """

    def __init__(
        self,
        micro_batch_sizes: Sequence[int],
        labels: Sequence[Label],
        price_means: FloatArray,
        base_means: FloatArray | None = None,
    ) -> None:
        self.num_batches = len(micro_batch_sizes)
        self.num_labels = len(price_means)
        self.price_means = price_means
        self._labels = labels
        octaves = np.log2(np.asarray(micro_batch_sizes, dtype=np.float64))
        distances = np.abs(octaves[:, None] - octaves[None, :])
        self._likeness: FloatArray = np.exp(-distances / _LENGTH_OCTAVES)
        below = octaves.max() - octaves
        self.base_means: FloatArray = 1 + _SLOWER_PER_OCTAVE * below if base_means is None else base_means
        self._drift: FloatArray = np.minimum(below[:, None], below[None, :]) / _LENGTH_OCTAVES

    def mean(self) -> FloatArray:
        """Of all weights, shape (num_weights,)."""
        rest = np.zeros(self.num_batches * self.num_labels + self.num_labels)
        return np.concatenate([self.base_means, self.price_means, rest])

    @cached_property
    def settings(self) -> tuple[tuple[float, float, _PriorSetting], ...]:
        """Lack of fit, logarithm of the weight, and the prior, for each setting that is fitted."""
        prices = price_covariance(self._labels, self.price_means)
        settings = []
        for size_effect, deviation, tilt in product(_SIZE_EFFECT, _DEVIATION, _TILT):
            factor = cho_factor(self._covariance(size_effect, prices, deviation, tilt), lower=True)
            precision = cho_solve(factor, np.eye(self.num_weights))
            prior = _PriorSetting(precision, float(np.log(np.diag(factor[0])).sum()))
            weight = _SIZE_EFFECT[size_effect]
            settings += [(lack, math.log(weight * of_lack), prior) for lack, of_lack in _LACK_OF_FIT.items()]
        return tuple(settings)

    @property
    def num_weights(self) -> int:
        return self.num_batches + self.num_labels * (self.num_batches + 2)

    def _covariance(
        self, size_effect: tuple[float, float], prices: FloatArray, deviation: float, tilt: float
    ) -> FloatArray:
        """Of all weights, shape (num_weights, num_weights)."""
        of_bases, of_drift = size_effect
        size_own = np.eye(self.num_batches)
        bases = _BASE_COMMON**2 + of_bases**2 * self._likeness + _BASE_OWN**2 * size_own
        scale = 0.2 + self.price_means
        labels_alike = (1 - _SHARED_BY_LABELS) * np.eye(self.num_labels) + _SHARED_BY_LABELS
        deviations = np.kron(of_drift**2 * self._drift, labels_alike * np.outer(scale, scale))
        deviations += np.kron(size_own, np.diag((deviation * scale) ** 2))
        covariance: FloatArray = block_diag(bases, prices, deviations, tilt**2 * np.eye(self.num_labels))
        return covariance

    def design(
        self, base: FloatArray, batch_indices: Sequence[int], shares: FloatArray, tilts: FloatArray
    ) -> FloatArray:
        """What each weight is multiplied with, shape (num_placements, num_weights).

        Args:
            base: Bases that prices are relative to, shape (num_batches,).
        """
        batch = np.asarray(batch_indices, dtype=np.intp)
        in_batch = np.eye(self.num_batches)[batch]
        scaled = shares * base[batch][:, None]
        deviations = (in_batch[:, :, None] * scaled[:, None, :]).reshape(len(batch), self.num_batches * self.num_labels)
        return np.hstack([in_batch, scaled, deviations, tilts * base[batch][:, None]])


class _Setting:
    """The model under one setting of lack of fit, size effect, deviation and tilt, fitted.

    In the form whose cost grows with the number of weights, not of trials: weights are some tens, trials may be
    thousands.
    """

    def __init__(
        self,
        prior_mean: FloatArray,
        prior: _PriorSetting,
        design: FloatArray,
        times: FloatArray,
        variances: FloatArray,
        lack_of_fit: float,
    ) -> None:
        self.lack_of_fit = lack_of_fit
        noise = variances + (lack_of_fit * times) ** 2
        residual = times - design @ prior_mean
        precision = prior.precision + design.T @ (design / noise[:, None])
        self._factor = cho_factor(precision, lower=True, check_finite=False)
        pull = design.T @ (residual / noise)
        step = cho_solve(self._factor, pull, check_finite=False)
        self.mean: FloatArray = prior_mean + step
        self.log_evidence = float(
            -0.5 * ((residual**2 / noise).sum() - pull @ step)
            - 0.5 * np.log(noise).sum()
            - np.log(np.diag(self._factor[0])).sum()
            - prior.half_log_determinant
        )

    @cached_property
    def covariance(self) -> FloatArray:
        covariance: FloatArray = cho_solve(self._factor, np.eye(len(self.mean)), check_finite=False)
        return covariance

    def draw(self, standard_normal: FloatArray) -> FloatArray:
        """A set of weights from as many standard normal numbers."""
        drawn: FloatArray = self.mean + solve_triangular(
            self._factor[0], standard_normal, lower=True, trans="T", check_finite=False
        )
        return drawn


class TimeModel:
    """The model after some trials; times in the unit of the observations.

    Args:
        observations: Without any, the unit is a plain step.
    """

    def __init__(self, prior: TimePrior, observations: Sequence[Observation]) -> None:
        self._prior = prior
        # The unit: a plain step takes about one. What is left of it the bases take up.
        self._unit = 1.0
        for first in observations[:1]:
            plain = float(prior.base_means[first.batch_index])
            self._unit = first.time / (plain * (1.0 + float(first.shares @ prior.price_means)))
        times = np.array([o.time for o in observations]) / self._unit
        variances = (np.array([o.standard_error for o in observations]) / self._unit) ** 2
        batches = [o.batch_index for o in observations]
        shares = np.array([o.shares for o in observations]).reshape(len(observations), prior.num_labels)
        tilts = np.array([o.tilts for o in observations]).reshape(shares.shape)
        self._base: FloatArray = prior.base_means
        self._fit(batches, shares, tilts, times, variances)
        # Prices are relative to bases, which only a first fit tells. A base of nothing would leave prices without
        # effect; no size is five times as fast as another.
        self._base = np.maximum(self._mean()[: prior.num_batches], 0.2)
        self._fit(batches, shares, tilts, times, variances)

    def _fit(
        self,
        batches: Sequence[int],
        shares: FloatArray,
        tilts: FloatArray,
        times: FloatArray,
        variances: FloatArray,
    ) -> None:
        prior = self._prior
        design = prior.design(self._base, batches, shares, tilts)
        settings, evidence = [], []
        for lack, log_prior, prior_setting in prior.settings:
            setting = _Setting(prior.mean(), prior_setting, design, times, variances, lack)
            settings.append(setting)
            evidence.append(log_prior + setting.log_evidence)
        weights = np.exp(np.array(evidence) - max(evidence))
        self._settings: Sequence[_Setting] = settings
        self._weights: FloatArray = weights / weights.sum()

    def predict(
        self, batch_indices: Sequence[int], shares: FloatArray, tilts: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the true time of placements, each of shape (num_placements,)."""
        design = self._prior.design(self._base, batch_indices, shares, tilts)
        mean, square = np.zeros(len(design)), np.zeros(len(design))
        for weight, setting in zip(self._weights, self._settings, strict=True):
            if weight < _LEAST_WEIGHT:
                continue
            own = design @ setting.mean
            variance = np.einsum("ij,jk,ik->i", design, setting.covariance, design)
            variance = np.maximum(variance, 0.0) + (setting.lack_of_fit * own) ** 2
            mean += weight * own
            square += weight * (own**2 + variance)
        deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
        return mean * self._unit, deviation * self._unit

    def draw(self, generator: np.random.Generator, num_draws: int) -> list[TimeWeights]:
        """Sets of weights, each as probable as it should be after what was measured."""
        chosen = generator.choice(len(self._settings), size=num_draws, p=self._weights)
        drawn = []
        for index in chosen:
            setting = self._settings[index]
            vector = setting.draw(generator.standard_normal(len(setting.mean)))
            drawn.append(self._as_weights(vector, setting.lack_of_fit))
        return drawn

    def mean_weights(self) -> TimeWeights:
        """The mean of all sets of weights."""
        lack = math.sqrt(sum(w * s.lack_of_fit**2 for w, s in zip(self._weights, self._settings, strict=True)))
        return self._as_weights(self._mean(), lack)

    def _mean(self) -> FloatArray:
        mean: FloatArray = np.sum([w * s.mean for w, s in zip(self._weights, self._settings, strict=True)], axis=0)
        return mean

    def _as_weights(self, vector: FloatArray, lack_of_fit: float) -> TimeWeights:
        num_batches, num_labels = self._prior.num_batches, self._prior.num_labels
        base, prices, deviations, tilts = np.split(
            vector, np.cumsum([num_batches, num_labels, num_batches * num_labels])
        )
        scale = self._unit * self._base[:, None]
        return TimeWeights(
            base=base * self._unit,
            prices=(prices + deviations.reshape(num_batches, num_labels)) * scale,
            tilts=tilts * scale,
            lack_of_fit=lack_of_fit,
        )
