"""What runs beside the device: builds, places, proves, measures, answers. Knows nothing of Ray or of a study."""

from __future__ import annotations

import datetime
import os
import platform
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
import torch

from runners.devices.base import Device, PeakMemory
from runners.devices.registry import open_device
from runners.inspect_model import inspect_model
from runners.measure.flops import count_flops
from runners.measure.step_time import StepTimes, measure_step_times, median_standard_error, time_once
from runners.proof.prover import Prover
from runners.proof.randomness import seed_everything
from runners.rig import Rig, RigStep
from runners.trial import (
    InspectionSpec,
    ModelInspection,
    TrialResult,
    TrialSpec,
    TrialStatus,
    Verdict,
    Verification,
    WorkloadSpec,
    failed_trial,
)
from runners.trial_error import explain_error
from runners.workloads.base import Workload
from runners.workloads.load import load_workload
from search_spaces.policy import RecomputePolicy

#: Steps that measuring memory takes; they warm up the step that is timed afterwards.
_MEMORY_STEPS = 2
#: Share of a trial's own step that the interleaved reference may take.
_REFERENCE_SHARE = 0.25
#: Share of the trial's time limit after which timing is content with what it has.
_TIMING_DEADLINE_SHARE = 0.8


class TrialWorker:
    """Serves the trials of one study, one after another, in one process."""

    def __init__(self) -> None:
        self._session: _Session | None = None

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        """Builds the model once and says what it is made of.

        Raises:
            WorkloadError: The model, its batch or a named path cannot be used.
        """
        device = open_device(spec.workload.device)
        workload = load_workload(spec.workload)
        rig = Rig(workload, spec.workload, device)
        seed_everything(spec.workload.seed)
        batch = workload.make_batch(spec.micro_batch_size)
        findings = inspect_model(
            rig.model, run_step=lambda: rig.step.forward(batch), blocks=spec.blocks, units=spec.units
        )
        return ModelInspection(
            shape=findings.shape,
            model_class=type(rig.model).__name__,
            tokens_per_sample=workload.tokens_per_sample,
            has_own_recompute=findings.has_own_recompute,
            device_memory_bytes=device.total_memory_bytes(),
            environment=describe_environment(device),
        )

    def run(self, spec: TrialSpec) -> TrialResult:
        """Runs one trial to its end. Whatever goes wrong in it is a result with a status, never an exception."""
        started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        start = time.monotonic()
        result = self._run(spec, start)
        device = self._session.device.describe() if self._session is not None else None
        return result.model_copy(
            update={
                "node": socket.gethostname(),
                "device": device,
                "worker_pid": os.getpid(),
                "started_at": started_at,
                "wall_time_s": time.monotonic() - start,
            }
        )

    def unclean_reason(self) -> str | None:
        """Why this process should not serve another trial; None while it is as it was before the first."""
        return "no session" if self._session is None else self._session.unclean_reason()

    def _run(self, spec: TrialSpec, start: float) -> TrialResult:
        trial: _Trial | None = None
        try:
            session = self._session_for(spec)
            trial = _Trial(spec, session, start)
            with session.device.memory_limit(spec.memory_cap_bytes):
                return trial.run()
        except Exception as error:  # noqa: BLE001  # the one place where a crash becomes a result
            rig = trial.rig if trial is not None else None
            model, region = (None, None) if rig is None else (rig.model, rig.phases.last_recomputed_region)
            reason, detail = explain_error(error, model, region)
            if self._session is not None and self._session.device.is_out_of_memory(error):
                return failed_trial(spec, TrialStatus.OUT_OF_MEMORY, reason, detail=detail)
            return failed_trial(spec, TrialStatus.FAILED, reason, detail=detail)

    def _session_for(self, spec: TrialSpec) -> _Session:
        if self._session is None or self._session.spec != spec.workload:
            self._session = _Session(spec.workload, global_batch_size=spec.policy.batch.global_batch_size)
        return self._session


class _Session:
    """What the trials of one workload share: the device, the data and what is proven of the plain model."""

    def __init__(self, spec: WorkloadSpec, *, global_batch_size: int) -> None:
        self.spec = spec
        self.device: Device = open_device(spec.device)
        self.workload: Workload = load_workload(spec)
        self.prover = Prover(self.workload, spec, self.device, global_batch_size=global_batch_size)
        self.plain_flops: dict[int, int] = {}
        self.live_bytes = 0
        self._num_threads = threading.active_count()
        self._leak_bytes = 0

    def settle(self) -> int:
        """Bytes alive now that are not the coming trial's."""
        self.device.release_cached_memory()
        self.live_bytes = self.device.live_bytes()
        return self.live_bytes

    def unclean_reason(self) -> str | None:
        self.device.release_cached_memory()
        leaked = self.device.live_bytes() - self.live_bytes
        if leaked > 0:
            return f"the trial left {leaked} bytes alive"
        if threading.active_count() > self._num_threads:
            return f"the trial left {threading.active_count() - self._num_threads} threads"
        children = psutil.Process().children()
        return f"the trial left {len(children)} child processes" if children else None


class _Trial:
    """One trial, from a fresh model to its figures."""

    def __init__(self, spec: TrialSpec, session: _Session, start: float) -> None:
        self.rig: Rig | None = None
        self._spec = spec
        self._session = session
        self._start = start

    def run(self) -> TrialResult:
        spec, session = self._spec, self._session
        if spec.measurement.verify:
            session.prover.prepare(spec.policy)
        micro_batches = self._batches(spec.policy)
        live_bytes = session.settle()
        self.rig = rig = Rig(session.workload, spec.workload, session.device, spec.policy)
        verification = self._verify(rig)
        peak = session.device.measure_peak(RigStep(rig, micro_batches), live_bytes_before_trial=live_bytes)
        flops_ratio = self._recomputed_flops_ratio(rig, micro_batches[0])
        times = self._times(rig, micro_batches, peak, verification)
        return self._result(verification, peak, flops_ratio, times)

    def _batches(self, policy: RecomputePolicy) -> list[dict[str, Any]]:
        batches = []
        for part in range(policy.batch.gradient_accumulation_steps):
            seed_everything(self._spec.workload.seed + part + 1)
            batches.append(self._session.workload.make_batch(policy.batch.micro_batch_size))
        return batches

    def _verify(self, rig: Rig) -> Verification:
        if not self._spec.measurement.verify:
            return Verification(verdict=Verdict.UNVERIFIED, reason="measurement.verify is false")
        return self._session.prover.verify(self._spec.policy, rig)

    def _recomputed_flops_ratio(self, rig: Rig, micro_batch: Mapping[str, Any]) -> float | None:
        """FLOPs that recompute adds, over those of the plain step; None where the model has none that are counted."""
        policy = self._spec.policy
        size = policy.batch.micro_batch_size

        def count() -> int:
            seed_everything(self._spec.workload.seed)
            flops = count_flops(lambda: rig.step.accumulate([micro_batch]))
            rig.step.drop_gradients()
            return flops

        if size not in self._session.plain_flops:
            with rig.placed(None):
                self._session.plain_flops[size] = count()
        plain = self._session.plain_flops[size]
        if plain == 0:
            return None
        return (count() - plain) / plain if policy.recomputes else 0.0

    def _times(
        self, rig: Rig, micro_batches: Sequence[Mapping[str, Any]], peak: PeakMemory, verification: Verification
    ) -> StepTimes:
        measurement = self._spec.measurement
        if not self._can_win(peak, verification):
            # It is measured, so that the table shows it, but a steady figure would decide nothing.
            measurement = measurement.model_copy(update={"max_steps": measurement.min_steps})
        for _ in range(measurement.warmup_steps - _MEMORY_STEPS):
            rig.step.run(micro_batches)
        time_reference = None
        if self._spec.reference is not None:
            time_reference = self._reference_timer(rig, self._spec.reference)
            time_reference()
        return measure_step_times(
            lambda: rig.step.run(micro_batches),
            time_reference,
            phases=rig.phases,
            device=self._session.device,
            measurement=measurement,
            give_up=self._is_late,
        )

    def _reference_timer(self, rig: Rig, reference: RecomputePolicy) -> Callable[[], float]:
        """Times forward and backward of a few micro-batches under the study's reference, scaled to a global batch."""
        global_batch_size = reference.batch.global_batch_size
        per_step = global_batch_size // reference.batch.micro_batch_size
        num_timed = max(1, round(_REFERENCE_SHARE * per_step))
        micro_batches = self._batches(reference)[:num_timed]

        def time_reference() -> float:
            with rig.placed(reference):
                seconds = time_once(lambda: rig.step.accumulate(micro_batches), self._session.device)
            rig.step.drop_gradients()
            return seconds * per_step / num_timed

        return time_reference

    def _can_win(self, peak: PeakMemory, verification: Verification) -> bool:
        cap = self._spec.memory_cap_bytes
        return verification.verdict is not Verdict.MISMATCH and (cap is None or peak.capped_bytes <= cap)

    def _is_late(self) -> bool:
        limit = self._spec.timeout_s
        return limit is not None and time.monotonic() - self._start > _TIMING_DEADLINE_SHARE * limit

    def _result(
        self, verification: Verification, peak: PeakMemory, flops_ratio: float | None, times: StepTimes
    ) -> TrialResult:
        batch = self._spec.policy.batch
        step_time_s = statistics.median(times.step_times_s)
        samples_per_second = batch.global_batch_size / step_time_s
        tokens = self._session.workload.tokens_per_sample
        speeds = times.relative_speeds()
        return TrialResult(
            trial_number=self._spec.trial_number,
            policy=self._spec.policy,
            status=TrialStatus.COMPLETED,
            samples_per_second=samples_per_second,
            tokens_per_second=None if tokens is None else samples_per_second * tokens,
            step_time_s=step_time_s,
            step_time_spread_s=_known(median_standard_error(times.step_times_s)),
            num_steps=len(times.step_times_s),
            relative_speed=statistics.median(speeds) if speeds else None,
            relative_speed_spread=_known(median_standard_error(speeds)) if speeds else None,
            reference_step_time_s=statistics.median(times.reference_times_s) if speeds else None,
            forward_time_s=times.phases.forward_s,
            backward_time_s=times.phases.backward_s,
            recompute_time_s=times.phases.recompute_s,
            optimizer_time_s=times.phases.optimizer_s,
            recomputed_flops_ratio=flops_ratio,
            peak_memory_bytes=peak.capped_bytes,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            memory_bytes=peak.by_kind,
            verification=verification,
        )


def describe_environment(device: Device) -> dict[str, Any]:
    """What a figure depends on besides the policy: versions, device, threads."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device_kind": device.kind,
        "device": device.describe(),
        "num_threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
    }


def _known(value: float) -> float | None:
    """None for a spread that one step alone cannot have."""
    return None if value != value else value
