"""Policies of one search with everything that is predicted of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runners.parallel.records import PipelineCut, Strategy
from runners.trial import DryRunResult
from search_spaces.choices import SearchChoices
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy, policy_to_dict
from tuner.forecast import DryRunPeaks, flops_prices, make_forecast
from tuner.planning.plan import PredictedPolicy
from tuner.planning.study_times import StudyTimes
from tuner.prediction.candidates import Candidates, ListedCandidates
from tuner.prediction.next_policy import PolicyProposer
from tuner.prediction.placement_features import FloatArray, PlacementFeatures
from tuner.prediction.tried import Tried

#: Standard deviations on either side of the mean that hold 90 % of a normal distribution.
_DEVIATIONS_OF_90_PCT = 1.645


class Predictor:
    """Predicts peaks and times from a dry run, and from an earlier study where there is one.

    Args:
        proposer: Knows peaks and how to fit times.
        timeline: None where steps were not traced, so that FLOPs are not known.
        times: None predicts no seconds.
        tokens_per_sample: None where samples are no sequences.
    """

    def __init__(
        self,
        proposer: PolicyProposer,
        timeline: MemoryTimeline | None,
        times: StudyTimes | None,
        *,
        tokens_per_sample: float | None,
    ) -> None:
        self._proposer = proposer
        self._timeline = timeline
        self._times = times
        self._tokens_per_sample = tokens_per_sample
        tried: Sequence[Tried] = () if times is None else times.tried
        self._model = proposer.time_model(tried)

    @property
    def predicts_times(self) -> bool:
        """False where not even FLOPs are known."""
        return self._timeline is not None

    def known_peak_bytes(self, policy: RecomputePolicy) -> int | None:
        """None for a policy whose peak would take a dry run of its own."""
        return self._proposer.peak_bytes(policy)

    def peak_bytes(self, policy: RecomputePolicy) -> int:
        """Of one of the plan's policies."""
        peak = self.known_peak_bytes(policy)
        assert peak is not None, "every policy of a plan has a peak"
        return peak

    def candidates(self, cap_bytes: int) -> tuple[Candidates, FloatArray]:
        """Every policy that may be worth having, with its time in the model's unit, shape (num_candidates,)."""
        weights = self._model.mean_weights()
        candidates = self._proposer.source.candidates([weights], cap_bytes)
        return candidates, candidates.times(weights)

    def predicted(self, policy: RecomputePolicy) -> PredictedPolicy:
        """The policy with all that can be said of it."""
        batch = policy.batch
        time_s = interval_s = samples_per_second = tokens_per_second = None
        if self._times is not None and self.predicts_times:
            mean, deviation = self._proposer.predict_time(self._model, policy)
            time_s = mean * self._times.seconds_per_unit
            half = _DEVIATIONS_OF_90_PCT * deviation * self._times.seconds_per_unit
            interval_s = (max(time_s - half, 0.0), time_s + half)
            samples_per_second = batch.global_batch_size / time_s
            if self._tokens_per_sample is not None:
                tokens_per_second = samples_per_second * self._tokens_per_sample
        return PredictedPolicy(
            policy=policy_to_dict(policy),
            policy_key=policy.key,
            policy_summary=policy.summary(),
            micro_batch_size=batch.micro_batch_size,
            gradient_accumulation_steps=batch.gradient_accumulation_steps,
            predicted_peak_memory_bytes=self.peak_bytes(policy),
            predicted_flops_ratio=self._flops_ratio(policy),
            predicted_step_time_s=time_s,
            predicted_step_time_interval_s=interval_s,
            predicted_samples_per_second=samples_per_second,
            predicted_tokens_per_second=tokens_per_second,
        )

    def _flops_ratio(self, policy: RecomputePolicy) -> float | None:
        if self._timeline is None:
            return None
        plain, recomputed = self._timeline.flops(policy)
        return 1 + recomputed / plain if plain else None


def stretches_predictor(
    choices: SearchChoices,
    dry_run: DryRunResult,
    times: StudyTimes | None,
    *,
    cap_bytes: int,
    tokens: float | None,
    strategy: Strategy = "none",
    num_ranks: int = 1,
    is_on_cpu: bool = True,
    cut: PipelineCut | None = None,
) -> Predictor:
    """For a model whose peaks are added up from traced stretches; the further arguments are `make_forecast`'s."""
    forecast = make_forecast(
        choices,
        dry_run,
        cap_bytes=cap_bytes,
        dry_run_peaks=_no_dry_runs,
        strategy=strategy,
        num_ranks=num_ranks,
        is_on_cpu=is_on_cpu,
        cut=cut,
    )
    assert forecast is not None, "there is a profile"
    timeline = MemoryTimeline(dry_run.profile) if dry_run.profile is not None else None
    return Predictor(forecast.proposer, timeline, times, tokens_per_sample=tokens)


def listed_predictor(
    choices: SearchChoices,
    dry_run: DryRunResult,
    policies: Sequence[RecomputePolicy],
    dry_run_peaks: DryRunPeaks,
    times: StudyTimes | None,
    *,
    cap_bytes: int,
    tokens: float | None,
) -> Predictor | None:
    """For a model whose peaks each take a dry run: of these policies only; None where those fail."""
    assert dry_run.profile is not None
    peaks = dict(zip(policies, dry_run_peaks(policies), strict=False))
    if not peaks:
        return None
    features = PlacementFeatures(choices)
    timeline = MemoryTimeline(dry_run.profile) if dry_run.profile.steps else None
    prices = np.zeros(features.num_labels) if timeline is None else flops_prices(choices, features, timeline)
    listed = ListedCandidates(list(peaks), np.array(list(peaks.values()), dtype=np.float64), features)
    proposer = PolicyProposer(listed, features, prices, cap_bytes, 0.0, peaks.get)
    return Predictor(proposer, timeline, times, tokens_per_sample=tokens)


def _no_dry_runs(policies: Sequence[RecomputePolicy]) -> Sequence[int]:
    raise AssertionError("peaks are added up")
