"""What is predicted of policies before they are run: put together from a dry run of the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from runners.parallel.records import PipelineCut, Strategy
from runners.trial import DryRunResult, ModelInspection, Prediction
from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import MemoryProfile
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import NONE, OFFLOAD, SEGMENT, BlockListPlacement, RecomputePolicy, units_of
from search_spaces.ranked_profile import ranked_profile
from search_spaces.registry import encoding_of, make_space
from search_spaces.stage_memory import PipelineStages, StageTimeline
from tuner.prediction.both_reshardings import BothReshardings
from tuner.prediction.candidates import CandidateSource, JoinedSources, ListedCandidates
from tuner.prediction.next_policy import PolicyProposer
from tuner.prediction.pipeline_features import PipelineFeatures
from tuner.prediction.pipeline_solver import PipelineSolver
from tuner.prediction.placement_features import FloatArray, Label, PlacementFeatures
from tuner.prediction.solver import NotNestedError, PlacementSolver
from tuner.prediction.tried import Tried

#: Policies that are listed, coarse ones first, where peaks come from the timeline and where each takes a dry run.
_MOST_COMPUTED, _MOST_DRY_RUN = 3_000, 150

#: What moving the activations of all blocks to the host and back adds to a plain step, where nobody has measured how
#: fast copies are: it runs no FLOPs.
_OFFLOAD_PRICE = 0.2
#: What the compiler's rebuilds add to a plain step where it may keep nothing, before any was measured: a third of a
#: forward pass, since it begins with what is cheap to rebuild, and that need not be written and read again.
_BUDGET_PRICE = 1 / 9
#: How far the ratios of compiled peaks to those of the model as it is lie apart, before any was measured.
COMPILED_ERROR = 0.03

#: Peaks of policies from a dry run of each; empty where that fails.
DryRunPeaks = Callable[[Sequence[RecomputePolicy]], Sequence[int]]
#: Predicted peak of each stage of a pipeline under a policy.
StagePeaks = Callable[[RecomputePolicy], tuple[int, ...]]


class Forecast:
    """Predictions for the policies of one search.

    Args:
        is_compiled: Trials run compiled code, which keeps and rebuilds other tensors than the model as it is: peaks
            steer the search, corrected by what was measured, but none is stated.
        stage_peaks: Predicted peak of each stage of a pipeline; None for other strategies.
    """

    def __init__(
        self, proposer: PolicyProposer, *, is_compiled: bool = False, stage_peaks: StagePeaks | None = None
    ) -> None:
        self.proposer = proposer
        self._is_compiled = is_compiled
        self._stage_peaks = stage_peaks

    def predict(self, policy: RecomputePolicy, tried: Sequence[Tried]) -> Prediction:
        """What is known of a policy, given the trials so far."""
        peak = None if self._is_compiled else self.proposer.peak_bytes(policy)
        of_stages = None if self._stage_peaks is None else self._stage_peaks(policy)
        if all(trial.time is None for trial in tried):
            return Prediction(peak_memory_bytes=peak, stage_peak_memory_bytes=of_stages)
        model = self.proposer.time_model(tried)
        time, deviation = self.proposer.predict_time(model, policy)
        return Prediction(
            peak_memory_bytes=peak, stage_peak_memory_bytes=of_stages, time=time, time_deviation=deviation
        )


def describe_dry_run(dry_run: DryRunResult) -> str:
    """What came of a dry run, in one line for the log."""
    profile = dry_run.profile
    if profile is None:
        return f"dry run: none, so no peak can be predicted ({dry_run.failure})"
    took = "" if dry_run.wall_time_s is None else f" in {dry_run.wall_time_s:.1f} s"
    if profile.refusal is not None:
        return f"dry run{took}: peaks are predicted one policy at a time, since {profile.refusal}"
    return (
        f"dry run{took}: peaks of all placements are predicted; {profile.num_checked} were checked against dry runs of "
        f"their own, the largest difference is {profile.max_relative_error:.2%}"
    )


def make_forecast(
    choices: SearchChoices,
    dry_run: DryRunResult,
    *,
    cap_bytes: int,
    dry_run_peaks: DryRunPeaks,
    is_compiled: bool = False,
    strategy: Strategy = "none",
    num_ranks: int | None = None,
    cut: PipelineCut | None = None,
    inspection: ModelInspection | None = None,
    is_on_cpu: bool = True,
) -> Forecast | None:
    """Predictions from the best that the dry run allows; None where the model has no dry run.

    Peaks are added up from traced stretches where the model allows that, and are asked of a dry run for each policy of
    a short list where it does not.

    Args:
        dry_run: Of a process that trains alone, whatever the strategy.
        strategy: How the ranks of a trial work together; decides what one of them holds.
        num_ranks: Those that ``strategy`` divides over; None for the search's own.
        cut: Where a pipeline cuts the model.
        inspection: Knows how fast copies to the host are.
        is_on_cpu: Trials run on a CPU, whose collectives copy what they send.
    """
    profile = dry_run.profile
    if profile is None or (profile.refusal is not None and strategy in ("fsdp2", "pipeline")):
        return None
    if cut is not None:
        return _pipeline_forecast(replace(choices, compile_memory_budgets=()), profile, cut, cap_bytes)
    error = COMPILED_ERROR if is_compiled else 0.0
    if profile.refusal is not None:
        buckets = profile.gradient_bytes if strategy == "ddp" else 0
        proposer = _dry_run_proposer(choices, profile, buckets, dry_run_peaks, cap_bytes, error)
        return None if proposer is None else Forecast(proposer, is_compiled=is_compiled)
    timelines = {
        reshard: MemoryTimeline(
            ranked_profile(
                profile,
                strategy,
                num_ranks or choices.data_parallel_degree,
                reshards=reshard is not False,
                copies=is_on_cpu,
            )
        )
        for reshard in choices.reshard_choices
    }
    error += profile.max_relative_error
    return Forecast(_timeline_proposer(choices, timelines, inspection, cap_bytes, error), is_compiled=is_compiled)


def _dry_run_proposer(
    choices: SearchChoices,
    profile: MemoryProfile,
    bucket_bytes: int,
    dry_run_peaks: DryRunPeaks,
    cap_bytes: int,
    error: float,
) -> PolicyProposer | None:
    """Proposes of a short list, each of whose peaks took a dry run; None where those fail."""
    features = PlacementFeatures(choices)
    placed = replace(choices, compile_memory_budgets=())
    policies = _coarse_policies(placed, _MOST_DRY_RUN)
    peaks = {policy: peak + bucket_bytes for policy, peak in zip(policies, dry_run_peaks(policies), strict=False)}
    if not peaks:
        return None
    static_bytes = profile.parameter_bytes + profile.optimizer_state_bytes
    for policy in _budget_policies(choices):
        plain = placed.policy(policy.batch, placed.plain_placements)
        if plain in peaks:
            peaks[policy] = _peak_within_budget(policy, peaks[plain], static_bytes)
    listed = ListedCandidates(list(peaks), np.array(list(peaks.values()), dtype=np.float64), features)
    return PolicyProposer(listed, features, plain_prices(features), cap_bytes, error, peaks.get)


def _timeline_proposer(
    choices: SearchChoices,
    timelines: Mapping[bool | None, MemoryTimeline],
    inspection: ModelInspection | None,
    cap_bytes: int,
    error: float,
) -> PolicyProposer:
    """Proposes of all policies, whose peaks are added up from traced stretches.

    Args:
        timelines: One for each choice of `SearchChoices.reshard_choices`.
    """
    features = PlacementFeatures(choices)
    placed = replace(choices, compile_memory_budgets=())
    sources = {
        reshard: _candidates(replace(placed, reshard_after_forward=reshard is not False), features, timeline)
        for reshard, timeline in timelines.items()
    }
    label = features.reshard_label
    first = choices.reshard_choices[0]
    source: CandidateSource = sources[first] if label is None else BothReshardings(sources[None], sources[False], label)

    def peak_bytes(policy: RecomputePolicy) -> int:
        timeline = timelines[policy.reshard_after_forward]
        peak = timeline.peak_bytes(policy)
        static_bytes = timeline.step_profile(policy.batch.micro_batch_size).static_bytes
        return _peak_within_budget(policy, peak, static_bytes)

    budgets = _budget_policies(choices)
    if budgets:
        peaks_of_budgets = np.array([peak_bytes(policy) for policy in budgets], dtype=np.float64)
        source = JoinedSources(source, ListedCandidates(budgets, peaks_of_budgets, features))
    price_means = flops_prices(placed, features, timelines[first], inspection)
    return PolicyProposer(source, features, price_means, cap_bytes, error, peak_bytes)


def _budget_policies(choices: SearchChoices) -> list[RecomputePolicy]:
    """Plain policies under each budget of the compiler but its default, which goes with placements."""
    return [choices.budget_policy(batch, of) for of in choices.budget_choices[1:] for batch in choices.batches]


def _pipeline_forecast(choices: SearchChoices, profile: MemoryProfile, cut: PipelineCut, cap_bytes: int) -> Forecast:
    """Of a model that is cut in stages: each has its own peak, and the slowest one decides how long a step is."""
    stages = PipelineStages(cut.first_blocks, cut.outside_bytes, cut.hidden_bytes, cut.tied_bytes)
    whole = MemoryTimeline(profile)
    timeline = StageTimeline(whole, stages)
    price_means = flops_prices(choices, PlacementFeatures(choices), whole)
    plain = timeline.stage_flops(RecomputePolicy(choices.batches[-1]))
    most = max(*plain, 1)
    features = PipelineFeatures(
        choices,
        stages,
        loads=[flops / most for flops in plain],
        whole_load=sum(plain) / most,
        price_means=price_means,
    )
    source: CandidateSource
    if choices.allowed is None:
        source = PipelineSolver(choices, features, timeline, make_space(encoding_of(choices), choices))
    else:
        policies = _coarse_policies(choices, _MOST_COMPUTED)
        computed = np.array([timeline.peak_bytes(policy) for policy in policies], dtype=np.float64)
        source = ListedCandidates(policies, computed, features)
    return Forecast(
        PolicyProposer(
            source,
            features,
            price_means,
            cap_bytes,
            profile.max_relative_error,
            timeline.peak_bytes,
            base_means=features.base_means(),
        ),
        stage_peaks=timeline.stage_peaks,
    )


def _peak_within_budget(policy: RecomputePolicy, plain_bytes: int, static_bytes: int) -> int:
    """A guess that lets each budget be tried: the compiler keeps exactly its share. What is measured corrects it."""
    if policy.compile_memory_budget is None:
        return plain_bytes
    return static_bytes + round(policy.compile_memory_budget * max(plain_bytes - static_bytes, 0))


def _candidates(choices: SearchChoices, features: PlacementFeatures, timeline: MemoryTimeline) -> CandidateSource:
    """The solver, where actions combine freely and lists of blocks nest; else a list of policies."""
    if choices.allowed is None:
        try:
            return PlacementSolver(choices, features, timeline)
        except NotNestedError:
            pass
    policies = _coarse_policies(choices, _MOST_COMPUTED)
    computed = np.array([timeline.peak_bytes(policy) for policy in policies], dtype=np.float64)
    return ListedCandidates(policies, computed, features)


def plain_prices(features: PlacementFeatures) -> FloatArray:
    """What to expect without any count of FLOPs: forward is a third of a step, and two units share a block evenly."""
    return np.array([_plain_price(label) for label in features.labels])


def _plain_price(label: Label) -> float:
    if label.list_index is None:
        return _price_over_all_lists(label)
    whole = not units_of(label.action)
    return 1 / 3 if whole else min(len(units_of(label.action)), 2) / 6


def _price_over_all_lists(label: Label) -> float:
    return 0.0 if label.budget is None else _BUDGET_PRICE * (1 - label.budget)


def flops_prices(
    choices: SearchChoices,
    features: PlacementFeatures,
    timeline: MemoryTimeline,
    inspection: ModelInspection | None = None,
) -> FloatArray:
    """FLOPs that recomputing all blocks of a list adds under each label, over those of a plain step.

    What offloading adds is told by the bytes that it moves and by how fast copies are.
    """
    return np.array([_flops_price(label, choices, timeline, inspection) for label in features.labels])


def _flops_price(
    label: Label, choices: SearchChoices, timeline: MemoryTimeline, inspection: ModelInspection | None
) -> float:
    if label.list_index is None:
        return _price_over_all_lists(label)
    if label.action == OFFLOAD:
        return _offload_price(label.list_index, choices, timeline, inspection)
    of_list = choices.block_lists[label.list_index]
    size = label.segment_size if label.action == SEGMENT else None
    placement: BlockListPlacement = of_list.place([label.action] * of_list.num_modules, size)
    plain, recomputed = timeline.flops(RecomputePolicy(choices.batches[-1], (placement,), choices.rng_choices[0]))
    return recomputed / plain if plain else 0.0


def _offload_price(
    list_index: int, choices: SearchChoices, timeline: MemoryTimeline, inspection: ModelInspection | None
) -> float:
    if inspection is None or inspection.host_copies is None or inspection.plain_forward is None:
        return _OFFLOAD_PRICE
    size = choices.batches[-1].micro_batch_size
    of_list = timeline.step_profile(size).lists[list_index]
    moved_bytes = sum(timeline.cell(of_list, (of_class,), NONE).forward.delta_bytes for of_class in of_list.classes)
    forward = inspection.plain_forward
    return inspection.host_copies.added_s(moved_bytes, forward.forward_s(size)) / forward.step_s(size)


def _coarse_policies(choices: SearchChoices, most: int) -> list[RecomputePolicy]:
    return list(itertools.islice(make_space(encoding_of(choices), choices).policies(), most))
