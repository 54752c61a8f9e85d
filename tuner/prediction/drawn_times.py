"""Step times of candidates and of measured trials, each as plausible as the time model holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.prediction.candidates import Candidates, listed
from tuner.prediction.front_filling import BoolArray
from tuner.prediction.placement_features import FloatArray, IntArray, PlacementFeatures
from tuner.prediction.time_model import TimeWeights
from tuner.prediction.tried import Tried


@dataclass(frozen=True)
class MeasuredTimes:
    """Trials whose time was measured, as columns."""

    policies: Candidates
    times: FloatArray
    errors: FloatArray
    is_feasible: BoolArray

    @classmethod
    def of(cls, features: PlacementFeatures, tried: Sequence[Tried]) -> MeasuredTimes:
        known = [trial for trial in tried if trial.time is not None]
        peaks = np.array([trial.peak_bytes or 0 for trial in known], dtype=np.float64)
        return cls(
            listed([trial.policy for trial in known], peaks, features),
            np.array([trial.time for trial in known], dtype=np.float64),
            np.array([trial.standard_error or 0.0 for trial in known]),
            np.array([trial.is_feasible for trial in known], dtype=np.bool_),
        )

    @property
    def has_feasible(self) -> bool:
        return bool(self.is_feasible.any())

    def relative_noise(self) -> float:
        """Median standard error of the measured times, relative to them; 0 where there are none."""
        return float(np.median(self.errors / self.times)) if len(self.times) else 0.0

    def feasible_peaks(self) -> FloatArray:
        return self.policies.peaks_bytes[self.is_feasible]


class DrawnTimes:
    """Times of candidates and of measured trials under each draw, lack of fit included.

    Attributes:
        mean: Of the candidates, over the draws, shape (num_rows,).
    """

    def __init__(
        self,
        candidates: Candidates,
        rows: IntArray,
        measured: MeasuredTimes,
        expected: TimeWeights,
        draws: Sequence[TimeWeights],
        generator: np.random.Generator,
    ) -> None:
        self._measured = measured
        self._expected = candidates.times(expected)[rows]
        by_draw = np.array([candidates.times(draw)[rows] for draw in draws])
        fitted = np.array([measured.policies.times(draw) for draw in draws])
        self.mean: FloatArray = by_draw.mean(axis=0)
        lack = np.array([draw.lack_of_fit for draw in draws])[:, None]
        self._candidates = by_draw * (1 + lack * generator.standard_normal(by_draw.shape))
        # A measured trial's true time lies between its fitted and its measured one, by how sure either is.
        misfit, noise = (lack * fitted) ** 2, measured.errors[None, :] ** 2
        trust = misfit / np.maximum(misfit + noise, 1e-300)
        deviation = np.sqrt(trust * noise)
        self._known = fitted + trust * (measured.times[None, :] - fitted)
        self._known += deviation * generator.standard_normal(fitted.shape)

    def expected_gains(self) -> FloatArray:
        """Share of the best measured time that each candidate is expected to save, shape (num_rows,).

        Before anything feasible was measured: how fast each candidate is expected to be. A guess of how fast it may
        be would begin with what is least known, such as the smallest micro-batch of all.
        """
        feasible = np.flatnonzero(self._measured.is_feasible)
        if not len(feasible):
            speeds: FloatArray = 1 / np.maximum(self._expected, 1e-9)
            return speeds
        best = feasible[self._known[:, feasible].mean(axis=0).argmin()]
        best_times = self._known[:, [best]]
        gains: FloatArray = np.maximum(best_times - self._candidates, 0.0).mean(axis=0) / best_times.mean()
        return gains

    def feasible_mean(self) -> FloatArray:
        mean: FloatArray = self._known[:, self._measured.is_feasible].mean(axis=0)
        return mean
