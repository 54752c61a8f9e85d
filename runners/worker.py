"""What runs beside the device: builds, places, proves, measures, answers. Knows nothing of Ray or of a study."""

from __future__ import annotations

import datetime
import os
import platform
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from runners.base import WorkloadError
from runners.compiler import why_no_compiler
from runners.devices.base import Device
from runners.devices.registry import open_device
from runners.diagnosis.diagnose import diagnose
from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.dry_run.dry_run import DryRun
from runners.dry_run.fake_forward import fake_forward
from runners.dry_run.fake_values import NoDryRunError
from runners.dry_run.profile_model import profile_model
from runners.inspect_model import InspectedModel, inspect_model
from runners.measure.copy_times import PlainForward
from runners.measure.device_probe import probe_time_s
from runners.measure.host_copies import best_time_s, measure_host_copies
from runners.parallel.pipeline_cut import find_pipeline_cut
from runners.parallel.ranks import ALONE, RankGroup, join_ranks
from runners.parallel.records import RankSpec
from runners.playoff_run import run_playoff
from runners.process_state import ProcessState
from runners.proof.limits import ProofLimits
from runners.proof.randomness import seed_everything
from runners.rig import Rig
from runners.step_timeline.records import StepTimeline, StepTimelineSpec
from runners.step_timeline.trace_step import trace_step
from runners.trial import (
    Answer,
    DryRunResult,
    DryRunSpec,
    InspectionSpec,
    ModelInspection,
    PlayoffResult,
    PlayoffSpec,
    TrialResult,
    TrialSpec,
    TrialStatus,
    WorkloadSpec,
    failed_trial,
)
from runners.trial_error import explain_error
from runners.trial_run import TrialRun
from runners.worker_session import WorkerSession
from runners.workloads.base import Workload
from runners.workloads.followed_size import refuse_fixed_batches
from runners.workloads.load import load_workload
from search_spaces.policy import BatchShape

AnswerT = TypeVar("AnswerT", bound=Answer)

_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


class TrialWorker:
    """Serves the trials of one study, one after another, in one process.

    Attributes:
        left_by_inspection: What the last inspection changed in the process for good; None where nothing.
        tighter_limits: As `Prover.tighter_limits`, of the last trial.
    """

    def __init__(self) -> None:
        self._session: WorkerSession | None = None
        self._ranks: RankGroup | None = None
        self._dry_run: tuple[WorkloadSpec, bool, DryRun] | None = None
        self.left_by_inspection: str | None = None
        self.tighter_limits: ProofLimits | None = None

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        """Builds the model once and says what it is made of.

        Raises:
            WorkloadError: The model, its batch or a named path cannot be used.
        """
        if spec.on_fake_tensors:
            return self._inspect_without_data(spec)
        device = open_device(spec.workload.device)
        if spec.workload.compile is not None:
            _refuse_without_compiler(spec.workload.compile, device)
        workload = load_workload(spec.workload)
        process_state = ProcessState()
        try:
            rig = Rig(workload, spec.workload, device)
            seed_everything(spec.workload.seed)
            batch = workload.make_batch(spec.micro_batch_size)
            if spec.other_micro_batch_size is not None:
                refuse_fixed_batches(workload, spec.micro_batch_size, spec.other_micro_batch_size)
            inspection = _inspection(rig.model, lambda: rig.step.forward(batch), spec, workload, device)
            if not spec.host_copies:
                return inspection
            forward_s = best_time_s(lambda: rig.step.forward(batch), device)
            return inspection.model_copy(
                update={
                    "host_copies": measure_host_copies(device),
                    "plain_forward": PlainForward(micro_batch_size=spec.micro_batch_size, time_s=forward_s),
                }
            )
        finally:
            self.left_by_inspection = process_state.restore()

    def dry_run(self, spec: DryRunSpec) -> DryRunResult:
        """Predicts memory without data. Whatever the model does to that is a refusal, never an exception.

        The model is kept for the next request on the same workload.
        """
        start = time.monotonic()
        try:
            dry_run = self._dry_run_for(spec)
            profile = None if spec.choices is None else profile_model(dry_run, spec.choices)
            peaks = tuple(dry_run.peak_bytes(policy) for policy in spec.policies)
            result = DryRunResult(profile=profile, peaks_bytes=peaks)
        except Exception as error:  # noqa: BLE001  # as in _run
            result = DryRunResult(failure=f"the model has no dry run: {self._why_no_dry_run(error)}")
            self._dry_run = None
        return result.model_copy(update={"wall_time_s": time.monotonic() - start})

    def run(self, spec: TrialSpec, rank: RankSpec | None = None) -> TrialResult:
        """Runs one trial to its end. Whatever goes wrong in it is a result with a status, never an exception.

        Args:
            rank: The place of this process among the ranks of the trial; None runs it in this process alone.
        """
        started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        start = time.monotonic()
        result = self._run(spec, rank, start)
        device = None if self._session is None else self._session.device
        return result.model_copy(
            update={
                "node": socket.gethostname(),
                "device": None if device is None else device.describe(),
                "device_probe_s": _probe_s(device, result),
                "worker_pid": os.getpid(),
                "started_at": started_at,
                "wall_time_s": time.monotonic() - start,
            }
        )

    def playoff(self, spec: PlayoffSpec, rank: RankSpec | None = None) -> PlayoffResult:
        """Times a few policies in turn; ``rank`` as in `run`."""
        batch = spec.policies[0].batch
        return self._answer(lambda: run_playoff(spec, self._session_for(spec.workload, batch, rank)), PlayoffResult)

    def diagnosis(self, spec: DiagnosisSpec) -> Diagnosis:
        """Measures what memory and time of a plain step are made of."""
        batch = spec.choices.batches[0]
        return self._answer(lambda: diagnose(spec, self._session_for(spec.workload, batch)), Diagnosis)

    def step_timeline(self, spec: StepTimelineSpec) -> StepTimeline:
        """Follows what one step keeps."""
        batch = spec.policy.batch
        return self._answer(lambda: trace_step(spec, self._session_for(spec.workload, batch)), StepTimeline)

    def unclean_reason(self) -> str | None:
        """Why this process should not serve another trial; None while it is as it was before the first."""
        return "no session" if self._session is None else self._session.unclean_reason()

    def _inspect_without_data(self, spec: InspectionSpec) -> ModelInspection:
        try:
            device: Device | None = open_device(spec.workload.device)
        except WorkloadError:
            device = None  # The model is looked at for a device that this machine does not have.
        workload = load_workload(spec.workload)
        other = spec.other_micro_batch_size
        with fake_forward(workload, spec.workload, spec.micro_batch_size, other_micro_batch_size=other) as fake:
            model, run_step = fake
            return _inspection(model, run_step, spec, workload, device)

    def _dry_run_for(self, spec: DryRunSpec) -> DryRun:
        wanted = (spec.workload, spec.tries_kernels)
        if self._dry_run is None or self._dry_run[:2] != wanted:
            self._dry_run = None  # The model before it goes first.
            dry_run = DryRun(load_workload(spec.workload), spec.workload, tries_kernels=spec.tries_kernels)
            self._dry_run = (*wanted, dry_run)
        return self._dry_run[2]

    def _why_no_dry_run(self, error: Exception) -> str:
        return _reason(error, None if self._dry_run is None else self._dry_run[2].model)

    def _run(self, spec: TrialSpec, rank: RankSpec | None, start: float) -> TrialResult:
        trial: TrialRun | None = None
        try:
            session = self._session_for(spec.workload, spec.policy.batch, rank)
            session.prover.limits = spec.proof_limits
            trial = TrialRun(spec, session, start)
            with session.device.memory_limit(spec.memory_cap_bytes):
                return trial.run()
        except Exception as error:  # noqa: BLE001  # the one place where a crash becomes a result
            self.tighter_limits = None if self._session is None else self._session.prover.tighter_limits
            rig = trial.rig if trial is not None else None
            model, region = (None, None) if rig is None else (rig.model, rig.phases.last_recomputed_region)
            reason, detail = explain_error(error, model, region)
            if self._session is not None and self._session.device.is_out_of_memory(error):
                return failed_trial(spec, TrialStatus.OUT_OF_MEMORY, reason, detail=detail)
            return failed_trial(spec, TrialStatus.FAILED, reason, detail=detail)

    def _answer(self, ask: Callable[[], AnswerT], answer_type: type[AnswerT]) -> AnswerT:
        """The answer; whatever goes wrong is an answer with its reason, never an exception."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001  # as in _run
            return answer_type(failure=explain_error(error, None, None)[0])

    def _session_for(self, workload: WorkloadSpec, batch: BatchShape, rank: RankSpec | None = None) -> WorkerSession:
        """The session of the workload; a process serves either trials of several ranks or what it does alone."""
        if self._session is None or self._session.spec != workload:
            device = open_device(workload.device)
            if rank is not None and self._ranks is None:
                self._ranks = join_ranks(rank, device.torch_device)
            self._session = WorkerSession(
                workload, global_batch_size=batch.global_batch_size, device=device, ranks=self._ranks or ALONE
            )
        return self._session


def _refuse_without_compiler(compiled: str, device: Device) -> None:
    reason = why_no_compiler(device.kind)
    if reason is not None:
        raise WorkloadError(
            f"model.compile is {compiled}, but {reason}; one is needed wherever trials run: install one, for example "
            "g++, or remove model.compile"
        )


def _probe_s(device: Device | None, result: TrialResult) -> float | None:
    """None after a failure, which may have left the device in any state."""
    return None if device is None or result.status is not TrialStatus.COMPLETED else probe_time_s(device)


def _inspect(model: nn.Module, run_step: Callable[[], torch.Tensor], spec: InspectionSpec) -> InspectedModel:
    try:
        return inspect_model(
            model,
            run_step=run_step,
            blocks=spec.blocks,
            units=spec.units,
            inner_units=spec.inner_units,
            keep_sets=spec.keep_sets,
        )
    except WorkloadError:
        raise
    except Exception as error:
        size = spec.micro_batch_size
        raise WorkloadError(f"the model cannot run forward on a batch of {size}: {_reason(error, model)}") from error


def _reason(error: Exception, model: nn.Module | None) -> str:
    """One line; our own errors are sentences already and need no type before them."""
    reason, _ = explain_error(error, model, None)
    return reason.removeprefix(f"{NoDryRunError.__name__}: ").removeprefix(f"{WorkloadError.__name__}: ")


def _inspection(
    model: nn.Module,
    run_step: Callable[[], torch.Tensor],
    spec: InspectionSpec,
    workload: Workload,
    device: Device | None,
) -> ModelInspection:
    findings = _inspect(model, run_step, spec)
    cut = None
    if spec.pipeline_stages is not None:
        paths = [blocks.path for blocks in findings.shape.block_lists]
        cut = find_pipeline_cut(model, run_step, paths, spec.pipeline_stages, num_samples=spec.micro_batch_size)
    return ModelInspection(
        shape=findings.shape,
        model_class=type(model).__name__,
        tokens_per_sample=workload.tokens_per_sample,
        has_own_recompute=findings.has_own_recompute,
        has_convolutions=any(isinstance(module, _CONVOLUTIONS) for module in model.modules()),
        device_memory_bytes=None if device is None else device.total_memory_bytes(),
        environment={} if device is None else describe_environment(device),
        pipeline_cut=cut,
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
        "niceness": os.nice(0),
    }
