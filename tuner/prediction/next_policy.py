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

from runners.trial import TrialStatus, Verdict
from search_spaces.policy import RecomputePolicy
from tuner.prediction.candidates import Candidates, CandidateSource, listed, without_waste
from tuner.prediction.front_filling import BoolArray, plan_filling
from tuner.prediction.peak_correction import PeakCorrection, PeakPair
from tuner.prediction.placement_features import NO_BUDGET, FloatArray, IntArray, PlacementFeatures
from tuner.prediction.time_model import Observation, TimeModel, TimePrior, TimeWeights

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
class Tried:
    """A policy that was measured or is being measured.

    Attributes:
        status: None while it is in flight.
        time: Of a step, in any unit that is the same for all; None where it was not measured.
        standard_error: Of ``time``; None where it is not known.
        peak_bytes: Measured; the cap where the device refused the memory; None where nothing is known.
        is_feasible: Within the cap, and proven where that is asked for.
        recompute_verdict: Whether its placement trains the same model.
        split_verdict: Whether its division into micro-batches does; None where nothing is divided.
    """

    policy: RecomputePolicy
    status: TrialStatus | None = None
    time: float | None = None
    standard_error: float | None = None
    peak_bytes: int | None = None
    is_feasible: bool = False
    recompute_verdict: Verdict | None = None
    split_verdict: Verdict | None = None


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
        candidates, of_each, rows = self._within_cap([model.mean_weights(), *draws], corrections, tried, is_taken)
        measured = _Measured.of(self.features, tried)
        if not len(rows):
            return NothingToGain(None, 1.0, avoids=any(self._blamed(tried)))
        times = _Times(candidates, rows, measured, model.mean_weights(), draws, generator)
        gain, winner = self._likely_winner(candidates, rows, times, measured, is_taken)
        if winner is not None and _is_turn_of_winner(len(tried), gain, measured.relative_noise()):
            return self._next(winner, "win", model, tried)
        if not measured.has_feasible:
            return NothingToGain(None, 1.0, avoids=any(self._blamed(tried)))
        expected_peaks = candidates.peaks_bytes[rows] * np.array([of_each[row].ratio for row in rows])
        covered, point = self._front_point(candidates, rows, times, expected_peaks, measured, is_taken)
        if point is not None:
            return self._next(point, "front", model, tried)
        return NothingToGain(gain, covered) if winner is None else self._next(winner, "win", model, tried)

    def _within_cap(
        self,
        weights: Sequence[TimeWeights],
        corrections: Mapping[int, PeakCorrection],
        tried: Sequence[Tried],
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
            rows = np.flatnonzero(fits & self._not_suspicious(candidates, tried))
            rows = self._whole_batches_first(candidates, rows, tried)
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
        times: _Times,
        measured: _Measured,
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
        times: _Times,
        expected_peaks: FloatArray,
        measured: _Measured,
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

    def _not_suspicious(self, candidates: Candidates, tried: Sequence[Tried]) -> BoolArray:
        """False for candidates with a label or a micro-batch size that went wrong and never went right."""
        bad_labels, bad_batches = self._blamed(tried)
        usable = ~np.isin(candidates.batch_indices, sorted(bad_batches))
        if bad_labels:
            usable &= (candidates.features.shares[:, sorted(bad_labels)] == 0).all(axis=1)
        return usable

    def _whole_batches_first(self, candidates: Candidates, rows: IntArray, tried: Sequence[Tried]) -> IntArray:
        """Those that divide nothing, if a division was wrong and none was right: a model that minds minds them all."""
        verdicts = {trial.split_verdict for trial in tried}
        if Verdict.MISMATCH not in verdicts or Verdict.MATCH in verdicts:
            return rows
        batches = enumerate(self.features.batches)
        whole = [index for index, batch in batches if batch.gradient_accumulation_steps == 1]
        undivided = rows[np.isin(candidates.batch_indices[rows], whole)]
        return undivided if len(undivided) else rows

    def _blamed(self, tried: Sequence[Tried]) -> tuple[set[int], set[int]]:
        """Labels and micro-batch sizes that went wrong and never went right."""
        bad_labels: set[int] = set()
        good_labels: set[int] = set()
        bad_batches: set[int] = set()
        for trial in tried:
            labels = {int(label) for label in np.flatnonzero(self.features.of(trial.policy).shares)}
            failed = trial.status in (TrialStatus.FAILED, TrialStatus.TIMED_OUT)
            if failed or trial.recompute_verdict is Verdict.MISMATCH:
                bad_labels |= labels
                if not failed:
                    bad_labels |= self._budgets_below(trial.policy)
            elif trial.status is TrialStatus.COMPLETED:
                good_labels |= labels
            if trial.split_verdict is Verdict.MISMATCH:
                bad_batches.add(self.features.batch_index(trial.policy))
        return bad_labels - good_labels, bad_batches

    def _budgets_below(self, policy: RecomputePolicy) -> set[int]:
        """Labels of smaller budgets than the policy's: what the compiler rebuilds wrongly, it does within them, too."""
        budget = policy.compile_memory_budget
        labels = self.features.budget_labels.items()
        return set() if budget is None else {label for other, label in labels if other < budget}


def _is_turn_of_winner(num_trials: int, gain: float, relative_noise: float) -> bool:
    """Whether the next trial looks for a winner and not for the front.

    With few trials a winner matters most. Later the front has most turns: there is always a candidate that might win,
    by luck where times are noisy, and by what no sum of costs tells where they are not.
    """
    if num_trials < _NUM_WINNER_TRIALS or (gain >= _HOPEFUL_GAIN and num_trials < _NUM_HOPEFUL_TRIALS):
        return True
    return num_trials % 4 == 0 and (relative_noise > _LITTLE_NOISE or num_trials < _NUM_HOPEFUL_TRIALS)


@dataclass(frozen=True)
class _Measured:
    """Trials whose time was measured, as columns."""

    policies: Candidates
    times: FloatArray
    errors: FloatArray
    is_feasible: BoolArray

    @classmethod
    def of(cls, features: PlacementFeatures, tried: Sequence[Tried]) -> _Measured:
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


class _Times:
    """Times of candidates and of measured trials under each draw, lack of fit included.

    Attributes:
        mean: Of the candidates, over the draws, shape (num_rows,).
    """

    def __init__(
        self,
        candidates: Candidates,
        rows: IntArray,
        measured: _Measured,
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
