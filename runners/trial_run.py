"""One trial, from a fresh model to its figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from runners.compiler import compiling_afresh
from runners.devices.base import PeakMemory
from runners.measure.flops import StepFlops, count_step_flops
from runners.measure.length_mix import mean_over_lengths, run_in_turn
from runners.measure.spread import median_standard_error
from runners.measure.step_time import StepTimes, measure_step_times, time_once
from runners.measure.utilization import Utilization, utilization
from runners.parallel.measure_communication import measure_communication
from runners.parallel.ranks import any_rank
from runners.parallel.records import Communication
from runners.proof.randomness import seed_everything
from runners.rig import Rig, RigStep
from runners.trial import TrialResult, TrialSpec, TrialStatus, Verdict, Verification
from runners.worker_session import WorkerSession
from search_spaces.policy import COMPILE_MODEL, RecomputePolicy

#: Steps that measuring memory takes; they warm up the step that is timed afterwards.
_MEMORY_STEPS = 2
#: Tries at a peak of several ranks, some of which may not be seen well.
_MOST_PEAK_TRIES = 8
#: Steps after which DDP has put its buckets in the order of the gradients, so that their memory is what it stays.
_STEPS_UNTIL_SETTLED = 2
#: Share of a trial's own step that the interleaved reference may take.
_REFERENCE_SHARE = 0.25
#: Share of the trial's time limit after which timing is content with what it has.
_TIMING_DEADLINE_SHARE = 0.8


class TrialRun:
    """Builds, proves, weighs and times one policy.

    Args:
        start: When the trial began, on the monotonic clock; its time limit counts from there.
    """

    def __init__(self, spec: TrialSpec, session: WorkerSession, start: float) -> None:
        self.rig: Rig | None = None
        self._spec = spec
        self._policy = spec.workload.as_run(spec.policy)
        self._session = session
        self._start = start

    def run(self) -> TrialResult:
        if self._policy.compile is None:
            self._prepare_proof()
            return self._run()
        with compiling_afresh() as of_plain_model:
            self._prepare_proof()
        with compiling_afresh() as of_policy:
            result = self._run()
        time_s = of_plain_model.time_s + of_policy.time_s
        return result.model_copy(update={"compile_time_s": time_s, "num_recompiles": of_policy.num_recompiles})

    def _prepare_proof(self) -> None:
        if self._spec.measurement.verify:
            self._session.prover.prepare(self._policy)

    def _run(self) -> TrialResult:
        spec, session = self._spec, self._session
        live_bytes = session.settle()
        micro_batches = session.batches(spec.policy)
        self.rig = rig = session.rig(self._policy)
        verification = self._verify(rig, micro_batches)
        if self._policy.compile is not None:
            rig.step.run(micro_batches)  # What compiling takes is no part of the step's memory.
        peaks = session.ranks.gather(self._own_peak(rig, micro_batches, live_bytes))
        peak = max(peaks, key=lambda of_rank: of_rank.capped_bytes)
        offloaded_bytes = rig.phases.host_bytes // _MEMORY_STEPS
        of_stages = self._of_stages(rig, peaks)
        # Made only now: the peak is that of the longest sequences alone.
        steps = [micro_batches, *session.shorter_steps(spec.policy)]
        flops = self._step_flops(rig, steps)
        communication = self._communication(rig, micro_batches)
        times = mean_over_lengths(self._times(rig, steps, peak, verification), len(steps))
        result = self._result(verification, peak, flops, times)
        of_ranks = {} if communication is None else {"peak_rank": peaks.index(peak), "communication": communication}
        return result.model_copy(update={"offloaded_bytes": offloaded_bytes, **of_ranks, **of_stages})

    def _own_peak(self, rig: Rig, micro_batches: Sequence[Mapping[str, Any]], live_bytes: int) -> PeakMemory:
        """Of this rank. Several ranks measure equally often, until each has seen a step well."""
        device, ranks, tries = self._session.device, self._session.ranks, list[PeakMemory]()
        while True:
            rig.phases.host_bytes = 0
            tries.append(device.measure_peak(RigStep(rig, micro_batches), live_bytes_before_trial=live_bytes))
            seen_well = [peak for peak in tries if not peak.may_be_less]
            if ranks.size == 1 or len(tries) == _MOST_PEAK_TRIES or not any_rank(ranks, not seen_well):
                return seen_well[0] if seen_well else min(tries, key=lambda peak: peak.capped_bytes)

    def _of_stages(self, rig: Rig, peaks: Sequence[PeakMemory]) -> dict[str, tuple[int, ...]]:
        """What a pipeline has one figure of for each stage; the step whose memory was measured is the last one."""
        schedule = rig.step.parallel.schedule
        if schedule is None:
            return {}
        return {
            "stage_peak_memory_bytes": tuple(peak.capped_bytes for peak in peaks),
            "stage_micro_batches": tuple(self._session.ranks.gather(schedule.most_in_flight)),
        }

    def _verify(self, rig: Rig, micro_batches: Sequence[Mapping[str, Any]]) -> Verification:
        if not self._spec.measurement.verify:
            for _ in range(_STEPS_UNTIL_SETTLED if self._session.ranks.size > 1 else 0):
                rig.step.run(micro_batches)
            return Verification(verdict=Verdict.UNVERIFIED, reason="measurement.verify is false")
        return self._session.prover.verify(self._policy, rig)

    def _step_flops(self, rig: Rig, steps: Sequence[Sequence[Mapping[str, Any]]]) -> StepFlops:
        """Of the mean step over all lengths, counted over one micro-batch of each; the others of a step cost the same.

        Both figures come from one pass under the policy: the plain model may not fit at this micro-batch. In compiled
        code no operator is seen.
        """
        if self._policy.compile is not None:
            return StepFlops(0, 0)
        if rig.step.parallel.schedule is not None:
            return self._pipeline_flops(rig, steps[0])
        micro_batches = [step[0] for step in steps]
        seed_everything(self._spec.workload.seed)
        flops = count_step_flops(lambda: rig.step.accumulate(micro_batches), rig.phases)
        rig.step.drop_gradients()
        num_micro_batches = self._spec.policy.batch.gradient_accumulation_steps
        return StepFlops(
            flops.plain * num_micro_batches // len(steps), flops.recomputed * num_micro_batches // len(steps)
        )

    def _pipeline_flops(self, rig: Rig, micro_batches: Sequence[Mapping[str, Any]]) -> StepFlops:
        """Of the mean stage, over all micro-batches: a schedule for fewer would first be made, which runs some more."""
        seed_everything(self._spec.workload.seed)
        own = count_step_flops(lambda: rig.step.accumulate(micro_batches), rig.phases)
        rig.step.drop_gradients()
        of_stages = self._session.ranks.gather((own.plain, own.recomputed))
        plain, recomputed = (sum(figures) // len(of_stages) for figures in zip(*of_stages, strict=True))
        return StepFlops(plain, recomputed)

    def _communication(self, rig: Rig, micro_batches: Sequence[Mapping[str, Any]]) -> Communication | None:
        """Of the rank that sends and receives most: under other strategies than a pipeline all do alike."""
        ranks = self._session.ranks
        if ranks.size == 1:
            return None
        plain = self._session.prover.plain_micro_batches(self._spec.policy) if self._spec.measurement.verify else None
        if plain is not None and rig.step.parallel.schedule is None:
            plain = plain[:1]
        own = measure_communication(rig, micro_batches, plain=plain)
        return max(ranks.gather(own), key=lambda of_rank: of_rank.num_bytes)

    def _times(
        self,
        rig: Rig,
        steps: Sequence[Sequence[Mapping[str, Any]]],
        peak: PeakMemory,
        verification: Verification,
    ) -> StepTimes:
        """Of cycles through all lengths, one step each."""
        measurement = self._spec.measurement
        if not self._can_win(peak, verification):
            # It is measured, so that the table shows it, but a steady figure would decide nothing.
            measurement = measurement.model_copy(update={"max_steps": measurement.min_steps})
        for micro_batches in steps[1:]:
            rig.step.run(micro_batches)
        for _ in range(measurement.warmup_steps - _MEMORY_STEPS):
            run_in_turn(rig.step, steps)
        time_reference = None
        if self._spec.reference is not None:
            time_reference = self._reference_timer(rig, self._spec.reference)
            time_reference()
        timing_start = time.monotonic()
        return measure_step_times(
            lambda: run_in_turn(rig.step, steps),
            time_reference,
            phases=rig.phases,
            device=self._session.device,
            measurement=measurement,
            give_up=lambda: any_rank(self._session.ranks, self._is_late(timing_start)),
            ranks=self._session.ranks,
        )

    def _reference_timer(self, rig: Rig, reference: RecomputePolicy) -> Callable[[], float]:
        """Times forward and backward of a few micro-batches under the study's reference, scaled to a global batch."""
        # A pipeline has one schedule at a time, for one number of micro-batches.
        is_pipeline = rig.step.parallel.schedule is not None
        reference_rig = self._session.rig(reference) if is_pipeline or not rig.takes(reference) else rig
        per_step = reference.batch.gradient_accumulation_steps
        num_timed = max(1, round(_REFERENCE_SHARE * per_step))
        # Filling and draining takes a pipeline as long as a micro-batch for each stage but one.
        num_filling = self._session.ranks.size - 1 if is_pipeline else 0
        num_timed = max(num_timed, num_filling + 1)
        scale = (per_step + num_filling) / (num_timed + num_filling)
        steps = [step[:num_timed] for step in self._session.steps(reference)]

        def time_reference() -> float:
            with reference_rig.placed(reference):
                run = reference_rig.step.accumulate
                timed = time_once(lambda: [run(step) for step in steps], self._session.device, self._session.ranks)
            reference_rig.step.drop_gradients()
            return timed.time_s * scale

        return time_reference

    def _rebuilds_unseen(self) -> bool:
        """Whether compiled code rebuilds something within itself; regions around compiled blocks are seen."""
        if self._policy.compile_memory_budget is not None:
            return True
        if self._policy.compile == COMPILE_MODEL:
            return self._policy.recomputes
        regions = [region for of_list in self._policy.placement for region in of_list.regions]
        return self._policy.compile is not None and any(region.unit_names() for region in regions)

    def _can_win(self, peak: PeakMemory, verification: Verification) -> bool:
        cap = self._spec.memory_cap_bytes
        return verification.verdict is not Verdict.MISMATCH and (cap is None or peak.capped_bytes <= cap)

    def _is_late(self, timing_start: float) -> bool:
        now, limit, budget = time.monotonic(), self._spec.timeout_s, self._spec.timing_budget_s
        if budget is not None and now - timing_start > budget:
            return True
        return limit is not None and now - self._start > _TIMING_DEADLINE_SHARE * limit

    def _utilization(self, flops: StepFlops, step_time_s: float) -> Utilization | None:
        assert self.rig is not None
        workload = self._spec.workload
        compute_type = getattr(torch, workload.autocast or workload.dtype)
        return utilization(flops, step_time_s, self._session.device, self.rig.model, compute_type)

    def _result(self, verification: Verification, peak: PeakMemory, flops: StepFlops, times: StepTimes) -> TrialResult:
        batch = self._spec.policy.batch
        step_time_s = statistics.median(times.step_times_s)
        samples_per_second = batch.global_batch_size / step_time_s
        tokens = self._session.workload.tokens_per_sample
        speed = times.relative_speed()
        use = self._utilization(flops, step_time_s)
        return TrialResult(
            trial_number=self._spec.trial_number,
            policy=self._spec.policy,
            status=TrialStatus.COMPLETED,
            samples_per_second=samples_per_second,
            tokens_per_second=None if tokens is None else samples_per_second * tokens,
            step_time_s=step_time_s,
            step_time_spread_s=_known(median_standard_error(times.step_times_s)),
            num_steps=len(times.step_times_s),
            relative_speed=None if speed is None else speed.value,
            relative_speed_spread=None if speed is None else _known(speed.standard_error),
            reference_step_time_s=statistics.median(times.reference_times_s) if times.reference_times_s else None,
            reference_drift_ratio=times.reference_drift(),
            forward_time_s=times.phases.forward_s,
            backward_time_s=times.phases.backward_s,
            recompute_time_s=None if self._rebuilds_unseen() else times.phases.recompute_s,
            optimizer_time_s=times.phases.optimizer_s,
            recomputed_flops_ratio=flops.recomputed / flops.plain if flops.plain else None,
            mfu=None if use is None else use.mfu,
            hfu=None if use is None else use.hfu,
            peak_memory_bytes=peak.capped_bytes,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            memory_bytes=peak.by_kind,
            verification=verification,
        )


def _known(value: float) -> float | None:
    """None for a spread that one step alone cannot have."""
    return None if value != value else value
