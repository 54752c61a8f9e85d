"""What to measure next, from what was measured so far and what is predicted of the rest; or why nothing more.

Sets of weights are drawn from the time model, each as plausible as it should be. A candidate is worth measuring for as
much as it is expected to beat the best one measured, over all draws: candidates that are fast for sure and candidates
that could be fast both count. Once no candidate is expected to beat it by more than a little, the points are measured
that the Pareto front lacks most; once it lacks little, the search is through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runners.trial import TrialStatus
from search_spaces.policy import RecomputePolicy
from tuner.prediction.candidates import Candidates, CandidateSource, without_waste
from tuner.prediction.drawn_times import DrawnTimes, MeasuredTimes
from tuner.prediction.front_filling import BoolArray, plan_filling
from tuner.prediction.peak_correction import PeakCorrection, PeakPair
from tuner.prediction.placement_features import NO_BUDGET, FloatArray, IntArray, PlacementFeatures
from tuner.prediction.suspects import Suspects
from tuner.prediction.time_model import Observation, TimeModel, TimePrior, TimeWeights
from tuner.prediction.tried import Tried

#: Sets of weights that a proposal is judged by.
_NUM_DRAWS = 32
#: A winner is looked for as long as some candidate is expected to beat the best by this share of its time.
LEAST_GAIN = 0.003
#: The same, per relative standard error of what was measured.
_LEAST_GAIN_PER_NOISE = 0.2
#: Trials that look for a winner only; after them one of four does, and the others fill the front.
_NUM_WINNER_TRIALS = 9
#: But up to so many trials a candidate that is expected to save such a share of the best one's time comes first.
_NUM_HOPEFUL_TRIALS, _HOPEFUL_GAIN = 15, 0.008
#: After so many no turn is the winner's where measured times have no larger relative standard error than this.
_LITTLE_NOISE = 0.015
#: Shares of the predicted front's hypervolume: points are planned for the first one that is not reached, since the
#: fewest points for a modest goal are not among the fewest for a high one. At the last the front counts as covered.
FRONT_GOALS = (0.995, 0.998)


@dataclass(frozen=True)
class NextPolicy:
    """Attributes:
    time: Predicted mean, in the unit of what was tried; None before any time was measured.
    time_deviation: Standard deviation of the prediction.
    purpose: ``win``: could be the fastest; ``front``: fills the front below it.
    """

    policy: RecomputePolicy
    purpose: str
    time: float | None
    time_deviation: float | None


@dataclass(frozen=True)
class NothingToGain:
    """No further policy is worth a trial.

    Attributes:
        gain: Expected share of the best one's time that the best untried candidate would save; None where no candidate
            is left at all.
        front_covered: Share of the predicted front's hypervolume that what was measured covers.
        avoids: Whether candidates were left out for what they share with trials that went wrong.
    """

    gain: float | None
    front_covered: float
    avoids: bool = False


@dataclass
class PolicyProposer:
    """Proposes policies of one search.

    Args:
        price_means: What each label is expected to cost, in plain steps; see `TimePrior`.
        prior_error: Relative error of predicted peaks among themselves.
        peak_bytes: Predicted peak of any policy; None where it is not known.
        base_means: As `TimePrior` takes them.
    """

    source: CandidateSource
    features: PlacementFeatures
    price_means: FloatArray
    cap_bytes: int
    prior_error: float
    peak_bytes: Callable[[RecomputePolicy], int | None]
    base_means: FloatArray | None = None
    _prior: TimePrior = field(init=False)
    #: The last model and what it was fitted to: a proposal and its prediction ask for the same one.
    _fitted: tuple[list[Tried], TimeModel] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        sizes = [batch.micro_batch_size for batch in self.features.batches]
        self._prior = TimePrior(sizes, self.features.labels, self.price_means, self.base_means)

    def propose(
        self, tried: Sequence[Tried], is_taken: Callable[[RecomputePolicy], bool], *, seed: int
    ) -> NextPolicy | NothingToGain:
        """The next policy to measure.

        Args:
            tried: All trials of the study, those in flight included, in order of number.
            is_taken: True for policies that must not be proposed.
            seed: Equal seeds propose equal policies for equal trials.
        """
        generator = np.random.default_rng(seed)
        model = self.time_model(tried)
        draws = model.draw(generator, _NUM_DRAWS)
        corrections = self.peak_corrections(tried)
        suspects = Suspects.of(self.features, tried)
        candidates, of_each, rows = self._within_cap([model.mean_weights(), *draws], corrections, suspects, is_taken)
        measured = MeasuredTimes.of(self.features, tried)
        if not len(rows):
            return NothingToGain(None, 1.0, avoids=suspects.are_any)
        times = DrawnTimes(candidates, rows, measured, model.mean_weights(), draws, generator)
        gain, winner = self._likely_winner(candidates, rows, times, measured, is_taken)
        if winner is not None and _is_turn_of_winner(len(tried), gain, measured.relative_noise()):
            return self._next(winner, "win", model, tried)
        if not measured.has_feasible:
            return NothingToGain(None, 1.0, avoids=suspects.are_any)
        expected_peaks = candidates.peaks_bytes[rows] * np.array([of_each[row].ratio for row in rows])
        covered, point = self._front_point(candidates, rows, times, expected_peaks, measured, is_taken)
        if point is not None:
            return self._next(point, "front", model, tried)
        return NothingToGain(gain, covered) if winner is None else self._next(winner, "win", model, tried)

    def _within_cap(
        self,
        weights: Sequence[TimeWeights],
        corrections: Mapping[int, PeakCorrection],
        suspects: Suspects,
        is_taken: Callable[[RecomputePolicy], bool],
    ) -> tuple[Candidates, list[PeakCorrection], IntArray]:
        """Candidates, the correction of each, and the rows of those that may be measured.

        These are the ones that fit for certain. Where there are none and predicted peaks are known to be vague, those
        that fit as peaks have typically come out; and at last the one of least memory, if it may fit at all.
        """
        of_plain = corrections[NO_BUDGET]
        ratios = [of_plain.worst_ratio, of_plain.ratio, of_plain.best_ratio]
        for ratio in ratios if of_plain.is_vague else ratios[:1]:
            candidates = self.source.candidates(weights, self.cap_bytes / ratio)
            of_each = [corrections[label] for label in self.features.budget_labels_of(candidates.features).tolist()]
            scales = np.array([correction.worst_ratio for correction in of_each]) * (ratio / of_plain.worst_ratio)
            fits = candidates.peaks_bytes * scales <= self.cap_bytes
            rows = suspects.usable_of(candidates, np.flatnonzero(fits))
            rows = without_waste(candidates, rows, self.features)
            if ratio != of_plain.worst_ratio:
                rows = np.array([row for row in rows if not is_taken(candidates.policy(int(row)))], dtype=np.int64)
            if len(rows):
                break
        if len(rows) and ratio == of_plain.best_ratio != of_plain.ratio:
            rows = rows[[int(candidates.peaks_bytes[rows].argmin())]]
        return candidates, of_each, rows

    def _likely_winner(
        self,
        candidates: Candidates,
        rows: IntArray,
        times: DrawnTimes,
        measured: MeasuredTimes,
        is_taken: Callable[[RecomputePolicy], bool],
    ) -> tuple[float, RecomputePolicy | None]:
        """The candidate that is expected to beat the best by most, if that is worth a trial, and by how much."""
        # What cannot be told apart by one trial is not worth many.
        least_gain = max(LEAST_GAIN, _LEAST_GAIN_PER_NOISE * measured.relative_noise())
        gains = times.expected_gains()
        for column in np.argsort(-gains, kind="stable"):
            gain = float(gains[column])
            if measured.has_feasible and gain < least_gain:
                return gain, None
            policy = candidates.policy(int(rows[column]))
            if not is_taken(policy):
                return gain, policy
        return 0.0, None

    def time_model(self, tried: Sequence[Tried]) -> TimeModel:
        """Fitted to what was measured; those in flight are taken to come out as predicted."""
        if self._fitted is None or self._fitted[0] != list(tried):
            self._fitted = list(tried), self._fit(tried)
        return self._fitted[1]

    def _fit(self, tried: Sequence[Tried]) -> TimeModel:
        known = [self._observation(t, t.time, t.standard_error or 0.0) for t in tried if t.time is not None]
        model = TimeModel(self._prior, known)
        pending = [t for t in tried if t.status is None]
        if not pending or not known:
            return model
        expected = [self._observation(t, 1.0, 0.0) for t in pending]
        means, deviations = model.predict(
            [o.batch_index for o in expected],
            np.array([o.shares for o in expected]),
            np.array([o.tilts for o in expected]),
        )
        # Its own deviation as the error: a guess that agrees with the model must not make it surer than a measurement.
        guesses = [
            self._observation(t, float(mean), float(deviation) / 2)
            for t, mean, deviation in zip(pending, means, deviations, strict=True)
        ]
        return TimeModel(self._prior, [*known, *guesses])

    def peak_corrections(self, tried: Sequence[Tried]) -> dict[int, PeakCorrection]:
        """By the label of the compiler's budget, since each budget keeps what it likes; all others share one."""
        pairs: dict[int, list[PeakPair]] = {label: [] for label in (NO_BUDGET, *self.features.budget_labels.values())}
        for trial in tried:
            predicted = None if trial.peak_bytes is None else self.peak_bytes(trial.policy)
            if predicted is not None and trial.peak_bytes is not None:
                refused = trial.status is TrialStatus.OUT_OF_MEMORY
                label = int(self.features.budget_labels_of(self.features.of(trial.policy)))
                pairs[label].append(PeakPair(predicted, trial.peak_bytes, refused))
        return {label: PeakCorrection.fit(of, prior_error=self.prior_error) for label, of in pairs.items()}

    def predict_time(self, model: TimeModel, policy: RecomputePolicy) -> tuple[float, float]:
        """Mean and standard deviation of one policy's step time."""
        of_policy = self.features.of(policy)
        mean, deviation = model.predict(
            [self.features.batch_index(policy)], of_policy.shares[None, :], of_policy.tilts[None, :]
        )
        return float(mean[0]), float(deviation[0])

    def _observation(self, trial: Tried, time: float, standard_error: float) -> Observation:
        of_policy = self.features.of(trial.policy)
        batch_index = self.features.batch_index(trial.policy)
        return Observation(batch_index, of_policy.shares, of_policy.tilts, time, standard_error)

    def _next(self, policy: RecomputePolicy, purpose: str, model: TimeModel, tried: Sequence[Tried]) -> NextPolicy:
        if all(trial.time is None for trial in tried):
            return NextPolicy(policy, purpose, None, None)
        time, deviation = self.predict_time(model, policy)
        return NextPolicy(policy, purpose, time, deviation)

    def _front_point(
        self,
        candidates: Candidates,
        rows: IntArray,
        times: DrawnTimes,
        expected_peaks: FloatArray,
        measured: MeasuredTimes,
        is_taken: Callable[[RecomputePolicy], bool],
    ) -> tuple[float, RecomputePolicy | None]:
        """The point that the front lacks most, None where it lacks little; and the share that is covered."""
        peaks = np.concatenate([expected_peaks, measured.feasible_peaks()])
        speeds = 1 / np.concatenate([times.mean, times.feasible_mean()])
        is_measured = np.arange(len(peaks)) >= len(rows)
        is_open: BoolArray = np.ones(len(peaks), dtype=np.bool_)
        while True:
            indices = np.flatnonzero(is_open)
            for goal in FRONT_GOALS:
                plan = plan_filling(
                    peaks[indices], speeds[indices], is_measured[indices], cap_bytes=self.cap_bytes, goal=goal
                )
                if plan.added:
                    break
            if not plan.added:
                return plan.covered, None
            for added in plan.added:
                index = int(indices[added])
                policy = candidates.policy(int(rows[index]))
                if not is_taken(policy):
                    return plan.covered, policy
                # Its measurement, or the trial that is under way, stands for it.
                is_open[index] = False


def _is_turn_of_winner(num_trials: int, gain: float, relative_noise: float) -> bool:
    """Whether the next trial looks for a winner and not for the front.

    With few trials a winner matters most. Later the front has most turns: there is always a candidate that might win,
    by luck where times are noisy, and by what no sum of costs tells where they are not.
    """
    if num_trials < _NUM_WINNER_TRIALS or (gain >= _HOPEFUL_GAIN and num_trials < _NUM_HOPEFUL_TRIALS):
        return True
    return num_trials % 4 == 0 and (relative_noise > _LITTLE_NOISE or num_trials < _NUM_HOPEFUL_TRIALS)
