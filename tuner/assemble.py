"""The only place where a config becomes objects: specs, space, sampler, rules, runner, recorder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_config.settings import TrackingSettings, tracking_settings
from runners.local_inspector import LocalInspector
from runners.step_timeline.records import StepTimelineSpec
from runners.trial import DryRunSpec, InspectionSpec, MeasurementSpec, ModelInspection, TrialSpec, WorkloadSpec
from search_spaces.actions import OFFLOAD, SELECTIVE, action_kind
from search_spaces.choices import SearchChoices, every_micro_batch_size
from search_spaces.policy import COMPILE_BLOCKS, RecomputePolicy
from tuner.config import ALL_KINDS, SearchConfig
from tuner.export.registry import EXPORTERS
from tuner.export.target_choices import choices_within
from tuner.memory_size import describe_bytes
from tuner.objective import Objective
from tuner.search_file.names import inner_units_in
from tuner.shipped_code import code_to_ship
from tuner.stopping import BaselineFailed, NoFurtherGain, NothingLeft, NumTrials, StopRule, TimeLimit, TooManyFailures
from tuner.user_error import UserError

if TYPE_CHECKING:
    from runners.ray_runner import RayRunner


class GoalError(UserError):
    """The goal cannot be met on this device or by this model; the message is one line for the user."""


def workload_spec(config: SearchConfig, inspection: ModelInspection | None = None) -> WorkloadSpec:
    """The workload of the search file.

    Args:
        inspection: Names the lists whose blocks are sharded, and where a pipeline is cut; only trials need them.
    """
    lists = () if inspection is None else inspection.shape.block_lists
    is_sharded = config.runner.strategy == "fsdp2"
    *shorter, longest = _sequence_lengths(config) or (None,)
    return WorkloadSpec(
        model_factory=config.model.factory,
        model_args=dict(config.model.args),
        dtype=config.model.dtype,
        autocast=config.model.autocast,
        compile=config.model.compile,
        compile_memory_budget=config.model.fixed_budget,
        batch_factory=config.batch.factory,
        sequence_length=longest,
        shorter_sequence_lengths=tuple(shorter),
        optimizer_name=config.optimizer.name,
        optimizer_args=dict(config.optimizer.args),
        base_dir=str(config.base_dir.resolve()),
        device=config.runner.device,
        seed=config.search.seed,
        strategy=config.runner.strategy,
        sharded_lists=tuple(blocks.path for blocks in lists) if is_sharded else (),
        pipeline_cut=None if inspection is None else inspection.pipeline_cut,
    )


def _sequence_lengths(config: SearchConfig) -> tuple[int, ...]:
    """Ascending."""
    lengths = config.batch.sequence_length
    if lengths is None:
        return ()
    return (lengths,) if isinstance(lengths, int) else tuple(sorted(lengths))


def inspection_spec(config: SearchConfig) -> InspectionSpec:
    blocks, units = config.placement.blocks, config.placement.units
    # Batch statistics need two samples, and some models refuse one; two are hardly dearer.
    sizes = sorted(micro_batch_sizes(config), key=lambda size: (size == 1, size))
    return InspectionSpec(
        workload=workload_spec(config),
        blocks=None if blocks == "auto" else tuple(blocks),
        units=None if units == "auto" else dict(units),
        inner_units=inner_units_in(config.placement.actions) if units == "auto" else (),
        keep_sets=tuple(action for action in config.placement.actions if action_kind(action) == SELECTIVE),
        host_copies=OFFLOAD in config.placement.actions,
        micro_batch_size=sizes[0],
        other_micro_batch_size=sizes[1] if len(sizes) > 1 else None,
        pipeline_stages=config.runner.pipeline_stages if config.runner.strategy == "pipeline" else None,
        timeout_s=config.runner.trial_timeout_s,
    )


def dry_run_spec(
    config: SearchConfig,
    choices: SearchChoices | None = None,
    policies: Sequence[RecomputePolicy] = (),
    *,
    tries_kernels: bool = True,
) -> DryRunSpec:
    return DryRunSpec(
        workload=workload_spec(config),
        choices=choices,
        policies=tuple(policies),
        tries_kernels=tries_kernels,
        timeout_s=config.runner.trial_timeout_s,
    )


def step_timeline_spec(
    config: SearchConfig,
    inspection: ModelInspection,
    policies: Sequence[RecomputePolicy],
    *,
    num_blocks: int | None,
) -> StepTimelineSpec:
    """Asks for the timeline of one step under each of the policies, of which the first one has to fit.

    Steps are traced as plain code: compiled code shows no tensors.
    """
    first, *also = (replace(policy, compile=None, compile_memory_budget=None) for policy in policies)
    return StepTimelineSpec(
        workload=workload_spec(config),
        policy=first,
        also=tuple(also),
        shape=inspection.shape,
        num_blocks=num_blocks,
        timeout_s=config.runner.trial_timeout_s,
    )


def micro_batch_sizes(config: SearchConfig) -> tuple[int, ...]:
    """The sizes that may be tried, ascending."""
    sizes = config.batch.micro_batch_sizes
    if sizes == "auto":
        degree, whole = config.runner.data_parallel_degree, config.batch.global_batch_size
        # A step of a pipeline has a micro-batch for each stage at least.
        most = whole // degree // config.runner.pipeline_stages
        return tuple(size for size in every_micro_batch_size(whole, data_parallel_degree=degree) if size <= most)
    return tuple(sorted(set(sizes)))


def search_choices(config: SearchConfig, inspection: ModelInspection) -> SearchChoices:
    """What the search may choose between.

    Raises:
        GoalError: Blocks are to be compiled, and the model has none.
    """
    if config.model.compile == COMPILE_BLOCKS and not inspection.shape.block_lists:
        raise GoalError(
            "model.compile is blocks, but no list of blocks was found in the model; name it with placement.blocks, "
            "or write model.compile: model"
        )
    sizes = config.placement.segment_sizes
    choices = SearchChoices(
        shape=inspection.shape,
        global_batch_size=config.batch.global_batch_size,
        micro_batch_sizes=micro_batch_sizes(config),
        actions=tuple(config.placement.actions),
        segment_sizes=None if sizes == "auto" else tuple(sizes),
        preserve_rng_state=config.placement.preserve_rng_state,
        data_parallel_degree=config.runner.data_parallel_degree,
        compile=config.model.compile,
        compile_memory_budgets=config.model.searched_budgets,
        reshard_after_forward=config.runner.reshard_after_forward,
        stage_borders=() if inspection.pipeline_cut is None else inspection.pipeline_cut.first_blocks[1:],
    )
    target = config.placement.target
    return choices if target is None else choices_within(choices, EXPORTERS[target])


def reference_policy(choices: SearchChoices, inspection: ModelInspection) -> RecomputePolicy | None:
    """The fixed placement whose steps are interleaved with every trial's: plain, at the smallest micro-batch.

    None on accelerators: a trial has its device to itself there, and the cap, which is enforced while the trial runs,
    could refuse the reference where it admits the trial.
    """
    if inspection.environment.get("device_kind") != "cpu":
        return None
    return choices.policy(choices.batches[-1], ())


def memory_cap_bytes(config: SearchConfig, inspection: ModelInspection) -> int:
    """The cap in bytes on the device that was found.

    Raises:
        GoalError: The cap is more than the device has.
    """
    device_bytes = inspection.device_memory_bytes
    assert device_bytes is not None, "a worker always answers with its device's memory"
    cap = config.memory_cap_size.bytes_on(device_bytes)
    if cap > device_bytes:
        raise GoalError(
            f"memory_cap is {config.memory_cap}, {describe_bytes(cap)}, but the device "
            f"({inspection.environment.get('device')}) has {describe_bytes(device_bytes)}; lower it, for example to 90%"
        )
    return cap


def objective_for(config: SearchConfig, cap_bytes: int, reference: RecomputePolicy | None) -> Objective:
    return Objective(
        memory_cap_bytes=cap_bytes, proof_required=config.measurement.verify, has_reference=reference is not None
    )


def stop_rules(config: SearchConfig) -> list[StopRule]:
    return [
        BaselineFailed(),
        TooManyFailures(),
        NothingLeft(),
        NoFurtherGain(),
        NumTrials(config.search.num_trials),
        TimeLimit(config.search.time_limit_s),
    ]


def spec_maker(
    config: SearchConfig, inspection: ModelInspection, *, cap_bytes: int, reference: RecomputePolicy | None
) -> Callable[[int, RecomputePolicy], TrialSpec]:
    """From a trial's number and policy to what the runner is given.

    Each trial counts steps for at most its share of the time limit: on a machine so noisy that no figure gets steady,
    the first trials would else eat up the time of those to come. Close ones meet again in the playoff.
    """
    workload = workload_spec(config, inspection)
    measurement = MeasurementSpec(**config.measurement.model_dump())

    def make_spec(trial_number: int, policy: RecomputePolicy) -> TrialSpec:
        return TrialSpec(
            trial_number=trial_number,
            policy=policy,
            workload=workload,
            measurement=measurement,
            reference=reference,
            memory_cap_bytes=cap_bytes,
            timing_budget_s=config.search.time_limit_s / config.search.num_trials,
            timeout_s=config.runner.trial_timeout_s,
        )

    return make_spec


def ray_runner(config: SearchConfig) -> RayRunner:
    # Ray takes a second to load, and most of what is put together here runs nothing.
    from runners.cluster.shares import Claim
    from runners.ray_runner import RayRunner, RayRunnerOptions

    resources, kind = config.runner.resources_per_trial, config.runner.accelerator_type
    return RayRunner(
        RayRunnerOptions(
            address=config.runner.ray_address,
            resources_per_trial=None if resources == "auto" else dict(resources),
            process_per_trial=config.runner.isolation == "process",
            accelerator_type=None if kind == ALL_KINDS else kind,
            code=code_to_ship(config),
            claim=Claim(priority=config.runner.priority, max_trials=config.runner.max_parallel_trials),
            num_ranks=_num_ranks(config),
        )
    )


def _num_ranks(config: SearchConfig) -> int | None:
    runner = config.runner
    return None if runner.strategy == "none" else runner.data_parallel_degree * runner.pipeline_stages


def local_inspector() -> LocalInspector:
    """What looks at models without data and without a device."""
    return LocalInspector()


def output_dir(config: SearchConfig) -> Path:
    """Folder of all studies: relative to where the command runs, as its user would expect."""
    return Path(os.path.expanduser(config.output_dir))


def tracking(config: SearchConfig) -> TrackingSettings:
    """Where MLflow keeps the study; one experiment per model unless one is named.

    Raises:
        GoalError: The default file under ``output_dir`` has an address that databases do not understand.
    """
    try:
        return tracking_settings(
            output_dir=output_dir(config),
            experiment=config.tracking.experiment or config.model.factory,
            uri=config.tracking.uri,
        )
    except ValueError as error:
        raise GoalError(str(error)) from error
