"""What goes to a worker and what comes back: frozen records, plain JSON, no torch."""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from runners.measure.copy_times import HostCopies, PlainForward
from runners.parallel.records import Communication, PipelineCut, Strategy
from runners.proof.limits import ProofLimits
from runners.record import Record
from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import MemoryProfile
from search_spaces.model_shape import ModelShape
from search_spaces.policy import RecomputePolicy


class TrialStatus(str, enum.Enum):
    """How a trial ended.

    Life of a trial::

        submitted -> COMPLETED      measured; within the cap or over it. The sampler learns its values.
                  -> OUT_OF_MEMORY  the device refused an allocation. The sampler learns that it does not fit.
                  -> TIMED_OUT      stopped after the trial's time limit. The sampler learns nothing.
                  -> NODE_LOST      its node went away. Submitted again once; the sampler learns nothing.
                  -> CANCELLED      the study stopped first. The sampler learns nothing; a resumed study tries it anew.
                  -> FAILED         it could not run; the reason says why. The sampler learns nothing.

    Nothing but a lost node is retried.
    """

    COMPLETED = "COMPLETED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMED_OUT = "TIMED_OUT"
    NODE_LOST = "NODE_LOST"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


class Verdict(str, enum.Enum):
    """What the proof says about a policy: trains the same model, trains another one, or could not be told."""

    MATCH = "MATCH"
    MISMATCH = "MISMATCH"
    UNVERIFIED = "UNVERIFIED"


class WorkloadSpec(Record):
    """The model, its data and its optimizer, as the user named them.

    Attributes:
        base_dir: Folder that relative paths in the factories start from.
        sequence_length: Tokens per sample; None where the model has no such length. Of several lengths the longest:
            it decides whether a policy fits.
        shorter_sequence_lengths: The others, ascending; steps take turns at all lengths.
        compile: What `torch.compile` is applied to in trials and playoffs, as in a policy; None runs the model as it
            is. Dry runs, diagnoses and timelines are of the model as it is either way.
        compile_memory_budget: As in a policy; of policies that have none of their own.
        device: ``auto``, ``cpu``, ``cuda`` or ``npu``.
        strategy: How the ranks of a trial train together. What is no trial (a dry run, a diagnosis) runs in one
            process, as if it were ``none``.
        sharded_lists: Paths of the block lists whose blocks ``fsdp2`` divides one by one.
        pipeline_cut: Where ``pipeline`` cuts the model; None for other strategies.
    """

    model_factory: str
    model_args: dict[str, Any] = Field(default_factory=dict)
    dtype: str = "float32"
    autocast: str | None = None
    compile: str | None = None
    compile_memory_budget: float | None = None
    batch_factory: str | None = None
    sequence_length: int | None = None
    shorter_sequence_lengths: tuple[int, ...] = ()
    optimizer_name: str = "adamw"
    optimizer_args: dict[str, Any] = Field(default_factory=dict)
    base_dir: str = "."
    device: str = "auto"
    seed: int = 0
    strategy: Strategy = "none"
    sharded_lists: tuple[str, ...] = ()
    pipeline_cut: PipelineCut | None = None

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """All lengths, ascending; empty where the model has none."""
        return self.shorter_sequence_lengths + (() if self.sequence_length is None else (self.sequence_length,))

    def as_run(self, policy: RecomputePolicy) -> RecomputePolicy:
        """The policy as trials and playoffs run it: compiled as the workload is, within its own budget if any."""
        budget = policy.compile_memory_budget
        own = self.compile_memory_budget if budget is None else budget
        return replace(policy, compile=self.compile, compile_memory_budget=own)


class InspectionSpec(Record):
    """Asks what a model is made of.

    Attributes:
        blocks: Paths of block lists; None finds them.
        units: Unit name to path below the block; None finds them.
        inner_units: Names of the units to be found that begin or end inside a module.
        keep_sets: Selective actions: those that ask for keep-sets, and those whose operators are to be checked.
        host_copies: Whether to find out how fast the device and its host exchange memory.
        micro_batch_size: Samples of the traced step.
        other_micro_batch_size: Whose batches must be of other shapes; None asks for nothing.
        pipeline_stages: Stages that the model is to be cut into; None cuts nothing.
        on_fake_tensors: The model is built and run without data, so that it need not fit this machine; nor need the
            workload's device be there.
    """

    workload: WorkloadSpec
    blocks: tuple[str, ...] | None = None
    units: dict[str, str] | None = None
    inner_units: tuple[str, ...] = ()
    keep_sets: tuple[str, ...] = ()
    host_copies: bool = False
    micro_batch_size: int = 1
    other_micro_batch_size: int | None = None
    pipeline_stages: int | None = None
    on_fake_tensors: bool = False
    timeout_s: float | None = None


class ModelInspection(Record):
    """What a worker found: the model's shape and what a person should know before searching.

    Attributes:
        tokens_per_sample: Tokens of one sample, padding included, the mean of several lengths; None where samples are
            not sequences.
        has_own_recompute: The model calls activation checkpointing itself.
        has_convolutions: Some module of it is a convolution.
        device_memory_bytes: Memory that a percentage cap is a share of.
        environment: Versions, device name and thread count of the worker.
        pipeline_cut: None where no stages were asked for.
        host_copies: None where they were not asked for, or no device is there.
        plain_forward: Beside them.
    """

    shape: ModelShape
    model_class: str
    tokens_per_sample: int | float | None = None
    has_own_recompute: bool = False
    has_convolutions: bool = False
    device_memory_bytes: int | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    pipeline_cut: PipelineCut | None = None
    host_copies: HostCopies | None = None
    plain_forward: PlainForward | None = None


#: Kinds of questions about a workload that a worker answers, each by its method of that name.
QuestionKind = Literal["dry_run", "playoff", "diagnosis", "step_timeline"]


class QuestionSpec(Record):
    """Asks a worker something that is no trial."""

    timeout_s: float | None = None


class Answer(Record):
    """What a worker says to a question.

    Attributes:
        failure: Why there is no answer, in one line; None where there is one.
    """

    failure: str | None = None


class DryRunSpec(QuestionSpec):
    """Asks what a step does to memory, without computing it: on tensors that have a shape and no data.

    Attributes:
        choices: What may be placed and which micro-batches may be tried; None asks for no profile.
        policies: Policies whose peak is wanted from a dry run of their own.
        tries_kernels: Whether to find out the scratch of kernels by running them on this machine, where the workload's
            device is its CPU.
    """

    workload: WorkloadSpec
    choices: SearchChoices | None = None
    policies: tuple[RecomputePolicy, ...] = ()
    tries_kernels: bool = True


class DryRunResult(Answer):
    """What a dry run found out.

    Attributes:
        profile: None where the spec asked for none, or where the model has no dry run.
        peaks_bytes: Of the spec's policies, in the same order; empty where the model has no dry run.
    """

    profile: MemoryProfile | None = None
    peaks_bytes: tuple[int, ...] = ()
    wall_time_s: float | None = None


class MeasurementSpec(Record):
    """How long to measure and whether to prove; see ``measurement`` in search.yaml."""

    warmup_steps: int = 2
    min_steps: int = 5
    max_steps: int = 50
    relative_spread: float = 0.02
    verify: bool = True


class TrialSpec(Record):
    """One trial to run.

    Attributes:
        reference: Fixed policy of the study whose steps are interleaved with this trial's; None runs none.
        memory_cap_bytes: Enforced on devices that can limit an allocator; None leaves the device open.
        timing_budget_s: Wall time of the counted steps after which those that were taken must do, ``min_steps`` at
            least; None measures until the figure is steady.
        proof_limits: Set by who speaks for several ranks, which cannot find them out together.
    """

    trial_number: int
    policy: RecomputePolicy
    workload: WorkloadSpec
    measurement: MeasurementSpec = MeasurementSpec()
    reference: RecomputePolicy | None = None
    memory_cap_bytes: int | None = None
    timing_budget_s: float | None = None
    timeout_s: float | None = None
    proof_limits: ProofLimits = ProofLimits()


class MemoryByKind(Record):
    """Bytes alive at the worst moment of the step; the kinds add up to the peak."""

    parameters: int
    gradients: int
    optimizer_states: int
    buffers: int
    activations: int
    temporary: int


class Verification(Record):
    """The proof that a policy trains the same model, or why there is none.

    Attributes:
        reason: One sentence for the table; None where all agrees and there is nothing to add.
        max_relative_error: The largest error over losses, gradients and buffers, relative as in ``runners/proof``.
        tolerance: What it was tested against.
        num_steps: Optimizer steps compared.
        reference: What it was compared with, in words.
        recompute_verdict: The placement alone, dropout alive, at this micro-batch.
        split_verdict: The division into micro-batches alone, randomness silenced; None where nothing is divided.
    """

    verdict: Verdict
    reason: str | None = None
    worst_tensor: str | None = None
    max_relative_error: float | None = None
    tolerance: float | None = None
    num_steps: int | None = None
    reference: str | None = None
    recompute_verdict: Verdict | None = None
    split_verdict: Verdict | None = None


class Prediction(Record):
    """What was predicted of a trial when it was asked for.

    Attributes:
        peak_memory_bytes: From the model's dry run: what the step itself needs, without an allocator's overhead.
        stage_peak_memory_bytes: The same of each stage of a pipeline; None for other strategies.
        time: Mean of the step time in the unit that trials are ranked in, one over the speed; None before any trial
            had been measured.
        time_deviation: Standard deviation of that prediction.
    """

    peak_memory_bytes: int | None = None
    stage_peak_memory_bytes: tuple[int, ...] | None = None
    time: float | None = None
    time_deviation: float | None = None


class TrialResult(Record):
    """What one trial measured. Absent is None, never a stand-in number.

    Attributes:
        reason: One line that says why the trial did not complete.
        step_time_s: Median wall time of a whole optimizer step at the global batch. Of several sequence lengths the
            mean step: a measurement is then one step at each length.
        step_time_spread_s: Standard error of that median.
        num_steps: Measurements that the median is of.
        relative_speed: Samples per second over those of the interleaved reference steps.
        relative_speed_spread: Standard error of ``relative_speed``.
        reference_step_time_s: What the reference would take for the same global batch, measured beside this trial.
        reference_drift_ratio: What it took in the later half of the trial over what it took in the earlier half.
        forward_time_s: Of a step, as the three times after it.
        recompute_time_s: None where the compiler rebuilds activations within its own code.
        recomputed_flops_ratio: FLOPs that recompute adds over the FLOPs of the same step without it; None where the
            model is compiled.
        offloaded_bytes: Copied to the host in a step, by offloaded blocks.
        compile_time_s: Compiling in this trial, the plain model's code for the proof included; in no other time. None
            where nothing is compiled. Short where the process or the compiler's cache on disk held the code already.
        num_recompiles: Times that code was compiled again for other shapes or another placement, as `torch.compile`
            counts them.
        mfu: FLOP/s of the plain step over the device's dense peak, 0 to 1; None where that peak is not known.
        hfu: The same with the FLOPs of recompute, which raises it for nothing.
        peak_memory_bytes: What the cap is tested against: reserved on accelerators, allocated on CPU. Of several ranks
            it is the worst one's, as are the other figures of memory.
        peak_rank: The rank that has it; None where a trial has one process.
        stage_peak_memory_bytes: Peaks of the stages of a pipeline, as `peak_memory_bytes`, the first stage first.
        stage_micro_batches: Micro-batches of which each stage held activations at once, as it was seen.
        communication: What the ranks sent each other in one step; None where a trial has one process.
        prediction: What had been predicted of it; added by whoever asked for the trial.
        device_probe_s: What the device took for a fixed piece of work, to tell nodes that are slower than their peers.
        detail: The long form of ``reason`` (traceback, tensor lists) for the log file.
    """

    trial_number: int
    policy: RecomputePolicy
    status: TrialStatus
    reason: str | None = None
    detail: str | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    step_time_s: float | None = None
    step_time_spread_s: float | None = None
    num_steps: int | None = None
    relative_speed: float | None = None
    relative_speed_spread: float | None = None
    reference_step_time_s: float | None = None
    reference_drift_ratio: float | None = None
    forward_time_s: float | None = None
    backward_time_s: float | None = None
    recompute_time_s: float | None = None
    optimizer_time_s: float | None = None
    recomputed_flops_ratio: float | None = None
    offloaded_bytes: int | None = None
    compile_time_s: float | None = None
    num_recompiles: int | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_memory_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    memory_bytes: MemoryByKind | None = None
    peak_rank: int | None = None
    stage_peak_memory_bytes: tuple[int, ...] | None = None
    stage_micro_batches: tuple[int, ...] | None = None
    communication: Communication | None = None
    verification: Verification | None = None
    prediction: Prediction | None = None
    node: str | None = None
    device: str | None = None
    worker_pid: int | None = None
    device_probe_s: float | None = None
    started_at: str | None = None
    wall_time_s: float | None = None


class PlayoffSpec(QuestionSpec):
    """A few policies to be timed in turn.

    Attributes:
        policies: At least two; the first is what the others are compared with.
        timing_budget_s: Wall time of the rounds after which those that were run must do, ``min_rounds`` at least; None
            goes on until the ratios are steady.
        relative_spread: Rounds end once each policy's relative speed has this standard error or less.
    """

    policies: tuple[RecomputePolicy, ...]
    workload: WorkloadSpec
    min_rounds: int = 5
    max_rounds: int = 30
    relative_spread: float = 0.01
    timing_budget_s: float | None = None


class PlayoffResult(Answer):
    """What the policies took, round by round.

    Attributes:
        step_times_s: Shape (num_policies, num_rounds); times of one round were taken right after one another. Of
            several sequence lengths each is the mean of one step at each.
        processor_shares: Processor seconds over wall seconds of each of these steps; empty where not known.
    """

    step_times_s: tuple[tuple[float, ...], ...] = ()
    processor_shares: tuple[tuple[float, ...], ...] = ()


FailureStatus = Literal[
    TrialStatus.OUT_OF_MEMORY, TrialStatus.TIMED_OUT, TrialStatus.NODE_LOST, TrialStatus.CANCELLED, TrialStatus.FAILED
]


def failed_trial(spec: TrialSpec, status: FailureStatus, reason: str, *, detail: str | None = None) -> TrialResult:
    """A result for a trial that measured nothing, with the one line that says why."""
    return TrialResult(trial_number=spec.trial_number, policy=spec.policy, status=status, reason=reason, detail=detail)
