"""From a dry run, and an earlier study where there is one, to the plan."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from runners.parallel.records import Strategy
from runners.trial import DryRunResult, ModelInspection, TrialStatus
from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import MemoryProfile
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from search_spaces.ranked_profile import ranked_profile
from tuner.forecast import DryRunPeaks
from tuner.planning.divided_memory import divided_memory
from tuner.planning.plain_memory import PlainMemory, plain_memory
from tuner.planning.plan import (
    LargestMicroBatch,
    Plan,
    PlannedModel,
    PredictedMemory,
    PredictedUniform,
    StudyUsed,
)
from tuner.planning.plan_notes import plan_notes
from tuner.planning.predicted_front import Candidate, cheapest, front_of, thinned
from tuner.planning.predictor import Predictor, listed_predictor, stretches_predictor
from tuner.planning.study_times import StudyTimes
from tuner.planning.uniform_policies import uniform_policies
from tuner.user_error import UserError

#: What the largest micro-batch of any placement at all is listed under.
ANY_MIXTURE = "any mixture"


class NotPredictableError(UserError):
    """What was asked for cannot be predicted of this model; the message is one line for the user."""


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is made for.

    Attributes:
        device_memory_bytes: None where it is not known and not needed.
        strategy: How the ranks that are planned for work together.
        num_ranks: Those ranks; one is planned for.
        times: None without an earlier study.
        is_for_cpu: The device is a CPU, whose kernels the dry run stands for.
        counts_copies: Ranks copy what they send each other, as they do on a CPU.
    """

    study: str
    inspection: ModelInspection
    choices: SearchChoices
    cap_bytes: int
    device_memory_bytes: int | None
    strategy: Strategy
    num_ranks: int
    times: StudyTimes | None
    is_for_cpu: bool
    counts_copies: bool

    @property
    def num_shards(self) -> int:
        """Ranks that share parameters, gradients and optimizer states."""
        return self.num_ranks if self.strategy == "fsdp2" else 1


def make_plan(request: PlanRequest, dry_run: DryRunResult, dry_run_peaks: DryRunPeaks) -> Plan:
    """The plan.

    Args:
        dry_run: With a profile.
        dry_run_peaks: Peaks of policies from a dry run of each, for a model whose peaks cannot be added up.

    Raises:
        NotPredictableError: States are to be divided, and this model's peaks cannot be added up; or its dry runs fail.
    """
    profile = dry_run.profile
    assert profile is not None, "without a profile there is no plan"
    whole = _Whole(request, uniform_policies(request.choices))
    cut = request.inspection.pipeline_cut
    if cut is not None and (profile.refusal is not None or request.num_shards > 1):
        why = profile.refusal or f"--shard is {request.num_shards}, which goes with data parallel ranks; leave it out"
        raise NotPredictableError(f"runner.strategy is pipeline, whose stages cannot be predicted: {why}")
    if profile.refusal is None:
        predictor = stretches_predictor(
            request.choices,
            dry_run,
            request.times,
            cap_bytes=request.cap_bytes,
            tokens=request.inspection.tokens_per_sample,
            strategy=request.strategy,
            num_ranks=request.num_ranks,
            is_on_cpu=request.counts_copies,
            cut=cut,
        )
        return whole.plan(predictor, profile, _Memory(profile, request) if cut is None else None)
    if request.num_shards > 1:
        raise NotPredictableError(
            f"--shard is {request.num_shards}, which takes peaks added up from single blocks, and this model allows "
            f"none: {profile.refusal}; leave --shard out"
        )
    listed = listed_predictor(
        request.choices,
        dry_run,
        [policy for policies in whole.uniform.values() for policy in policies],
        dry_run_peaks,
        request.times,
        cap_bytes=request.cap_bytes,
        tokens=request.inspection.tokens_per_sample,
    )
    if listed is None:
        raise NotPredictableError(
            "the model cannot be run without data under its placements, so no peak can be predicted; use tune run"
        )
    return whole.plan(listed, profile, None)


class _Memory:
    """What one rank holds without recompute."""

    def __init__(self, profile: MemoryProfile, request: PlanRequest) -> None:
        self._choices = request.choices
        self._is_divided = request.num_shards > 1
        self._alone = MemoryTimeline(profile)
        self._ranked = MemoryTimeline(
            ranked_profile(
                profile,
                request.strategy,
                request.num_ranks,
                reshards=request.choices.reshard_choices[0] is not False,
                copies=request.counts_copies,
            )
        )

    def plain(self, micro_batch_size: int) -> tuple[PlainMemory, int | None]:
        """What memory is made of, and how much of it is whole although it is divided; None where nothing is."""
        if not self._is_divided:
            return plain_memory(self._ranked, micro_batch_size), None
        batch = self._choices.batch(micro_batch_size)
        return divided_memory(self._alone, self._ranked, self._choices.policy(batch, self._choices.plain_placements))


@dataclass(frozen=True)
class _Whole:
    """Puts the parts of a plan together."""

    request: PlanRequest
    uniform: Mapping[str, Sequence[RecomputePolicy]]

    def plan(self, predictor: Predictor, profile: MemoryProfile, memory: _Memory | None) -> Plan:
        request = self.request
        candidates = self._candidates(predictor)
        fitting = [each for each in candidates if each.peak_bytes <= request.cap_bytes]
        uniform = tuple(self._uniform(predictor))
        # Without times nothing is cheaper than anything else.
        ranked = fitting if predictor.predicts_times else []
        sizes_compare = request.times is not None
        front = front_of(ranked, sizes_compare=sizes_compare)
        rows = thinned(front, sizes_compare=sizes_compare)
        per_size = [found for of_size in _by_size(ranked, request.choices).values() if (found := cheapest(of_size))]
        best = cheapest(per_size)
        plan = Plan(
            study=request.study,
            model=_model(request.inspection),
            memory_cap_bytes=request.cap_bytes,
            device_memory_bytes=request.device_memory_bytes,
            num_shards=request.num_shards,
            global_batch_size=request.choices.global_batch_size,
            peaks_from="dry runs" if memory is None else "stretches",
            max_relative_error=None if memory is None else profile.max_relative_error,
            time_unit=_time_unit(predictor, request.times),
            times_from=None if request.times is None else _study_used(request, predictor),
            memory=() if memory is None else tuple(self._memory(candidates, memory)),
            uniform=uniform,
            largest_micro_batch=tuple(self._largest(uniform, fitting)),
            cheapest=tuple(predictor.predicted(each.make_policy()) for each in per_size),
            best=None if best is None else predictor.predicted(best.make_policy()),
            front=tuple(predictor.predicted(each.make_policy()) for each in rows),
            num_front=len(front),
            notes=(),
        )
        return plan.model_copy(update={"notes": tuple(self._notes(plan, profile))})

    def _notes(self, plan: Plan, profile: MemoryProfile) -> Iterator[str]:
        return plan_notes(
            plan,
            refusal=profile.refusal,
            is_for_cpu=self.request.is_for_cpu,
            counts_copies=self.request.counts_copies,
            has_convolutions=self.request.inspection.has_convolutions,
            unseen_kernels=profile.unseen_kernels,
        )

    def _candidates(self, predictor: Predictor) -> list[Candidate]:
        found, times = predictor.candidates(self.request.cap_bytes)
        batches = self.request.choices.batches
        columns = zip(found.batch_indices.tolist(), found.peaks_bytes.tolist(), times.tolist(), strict=True)
        return [
            Candidate(batches[batch].micro_batch_size, int(peak), time, partial(found.policy, index))
            for index, (batch, peak, time) in enumerate(columns)
        ]

    def _uniform(self, predictor: Predictor) -> Iterator[PredictedUniform]:
        for action, policies in self.uniform.items():
            for policy in policies:
                peak = predictor.peak_bytes(policy)
                yield PredictedUniform(
                    action=action,
                    micro_batch_size=policy.batch.micro_batch_size,
                    gradient_accumulation_steps=policy.batch.gradient_accumulation_steps,
                    predicted_peak_memory_bytes=peak,
                    predicted_to_fit=peak <= self.request.cap_bytes,
                )

    def _largest(
        self, uniform: Sequence[PredictedUniform], fitting: Sequence[Candidate]
    ) -> Iterator[LargestMicroBatch]:
        for action in self.uniform:
            sizes = [each.micro_batch_size for each in uniform if each.action == action and each.predicted_to_fit]
            yield LargestMicroBatch(action=action, micro_batch_size=max(sizes, default=None))
        sizes = [each.micro_batch_size for each in fitting]
        yield LargestMicroBatch(action=ANY_MIXTURE, micro_batch_size=max(sizes, default=None))

    def _memory(self, candidates: Sequence[Candidate], memory: _Memory) -> Iterator[PredictedMemory]:
        for size, of_size in _by_size(candidates, self.request.choices).items():
            parts, gathered = memory.plain(size)
            floor = min(of_size, key=lambda each: (each.peak_bytes, each.time))
            yield PredictedMemory(
                micro_batch_size=size,
                gradient_accumulation_steps=self.request.choices.batch(size).gradient_accumulation_steps,
                parameters_bytes=parts.parameters,
                gradients_bytes=parts.gradients,
                optimizer_states_bytes=parts.optimizer_states,
                gathered_bytes=gathered,
                buffers_and_inputs_bytes=parts.others,
                activations_and_temporary_bytes=parts.activations,
                predicted_peak_memory_bytes=parts.peak + (gathered or 0),
                floor_bytes=floor.peak_bytes,
                floor_policy=floor.make_policy().summary(),
            )


def _by_size(candidates: Sequence[Candidate], choices: SearchChoices) -> dict[int, list[Candidate]]:
    """By micro-batch size, the largest first."""
    by_size: dict[int, list[Candidate]] = {batch.micro_batch_size: [] for batch in choices.batches}
    for each in candidates:
        by_size[each.micro_batch_size].append(each)
    return by_size


def _model(inspection: ModelInspection) -> PlannedModel:
    lists = inspection.shape.block_lists
    return PlannedModel(
        model_class=inspection.model_class,
        num_parameters=inspection.shape.num_parameters,
        block_lists=tuple(f"{blocks.path}, {blocks.num_blocks} x {blocks.kind}" for blocks in lists),
    )


def _time_unit(predictor: Predictor, times: StudyTimes | None) -> Literal["seconds", "plain step FLOPs"] | None:
    if not predictor.predicts_times:
        return None
    return "plain step FLOPs" if times is None else "seconds"


def _study_used(request: PlanRequest, predictor: Predictor) -> StudyUsed:
    times = request.times
    assert times is not None
    ratios = [] if request.num_shards > 1 else list(_peak_ratios(times, predictor))
    return StudyUsed(
        study=times.study,
        device=times.device,
        num_trials=sum(trial.time is not None for trial in times.tried),
        measured_peak_ratios=(min(ratios), statistics.median(ratios), max(ratios)) if ratios else None,
    )


def _peak_ratios(times: StudyTimes, predictor: Predictor) -> Iterator[float]:
    """Measured over predicted peaks of the earlier study's trials."""
    for trial in times.tried:
        predicted = predictor.known_peak_bytes(trial.policy)
        if trial.status is TrialStatus.COMPLETED and trial.peak_bytes is not None and predicted is not None:
            yield trial.peak_bytes / predicted
