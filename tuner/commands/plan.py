"""`tune plan`: the predicted front, without running a step and without the device."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from runners.trial import DryRunResult, DryRunSpec, InspectionSpec, ModelInspection
from search_spaces.policy import RecomputePolicy
from tuner import assemble
from tuner.config import SearchConfig
from tuner.console import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_FEASIBLE, err_console, show, show_text
from tuner.interrupts import Interrupts
from tuner.memory_size import describe_bytes, format_bytes, parse_memory_size
from tuner.planning.make_plan import PlanRequest, make_plan
from tuner.planning.plan import Plan
from tuner.planning.plan_tables import plan_tables
from tuner.planning.study_times import study_times
from tuner.results import StudyResults
from tuner.search_file.load import load_search_file
from tuner.studies import find_study
from tuner.user_error import UserError

logger = logging.getLogger(__name__)


class PlanOptionError(UserError):
    """An option of `tune plan` that cannot be used; the message is one line for the user."""


@dataclass(frozen=True)
class PlanOptions:
    """What the command line adds to the search file.

    Attributes:
        study: Name or folder of an earlier study; None predicts no seconds.
        device_memory: As written; None where the device is this machine's, or is not needed.
        num_shards: Ranks that share parameters, gradients and optimizer states.
        output_dir: Folder of all studies.
    """

    study: str | None
    device_memory: str | None
    num_shards: int
    output_dir: Path


class Inspector(Protocol):
    """Looks at models without data."""

    def inspect(self, spec: InspectionSpec) -> ModelInspection: ...
    def dry_run(self, spec: DryRunSpec) -> DryRunResult: ...


def plan_command(search_file: Path, options: PlanOptions, *, as_json: bool) -> int:
    """Predicts and shows the plan; gives back the exit code."""
    config = load_search_file(search_file)
    device_bytes = _device_memory(options.device_memory)
    results = None
    if options.study is not None:
        _, results = find_study(options.study, output_dir=options.output_dir, named_by="--study")
    inspector = assemble.local_inspector()
    with Interrupts().handled():
        try:
            plan = _plan(config, options, inspector, results, device_bytes)
        finally:
            inspector.close()
    if isinstance(plan, str):
        err_console.print(Text(plan), soft_wrap=True)
        return EXIT_FAILED
    if as_json:
        show_text(plan.to_json())
    else:
        _show(plan)
    return EXIT_DONE if plan.anything_fits else EXIT_NOTHING_FEASIBLE


def _plan(
    config: SearchConfig,
    options: PlanOptions,
    inspector: Inspector,
    results: StudyResults | None,
    device_bytes: int | None,
) -> Plan | str:
    """The plan, or one line why nothing can be predicted of this model."""
    inspection_spec = assemble.inspection_spec(config).model_copy(update={"on_fake_tensors": True})
    with _at_work("building the model without data"):
        inspection = inspector.inspect(inspection_spec)
    cap_bytes, device_bytes = _memory_cap(config, inspection, device_bytes)
    # What a compiler keeps within a budget cannot be told without running it.
    choices = replace(assemble.search_choices(config, inspection), compile_memory_budgets=())
    is_for_cpu = config.runner.device == "cpu"
    request = PlanRequest(
        study=config.study,
        inspection=inspection,
        choices=choices,
        cap_bytes=cap_bytes,
        device_memory_bytes=device_bytes,
        strategy=config.runner.strategy,
        num_ranks=config.runner.data_parallel_degree,
        times=None if results is None else study_times(results, config, inspection, choices),
        is_for_cpu=is_for_cpu,
        counts_copies=_is_for_ranks_on_a_cpu(config, options, inspection),
    )
    with _at_work("running steps on fake tensors"):
        dry_run = inspector.dry_run(assemble.dry_run_spec(config, choices, tries_kernels=is_for_cpu))
    if dry_run.profile is None:
        return f"nothing can be predicted of {config.model.factory}: {dry_run.failure}"

    def dry_run_peaks(policies: Sequence[RecomputePolicy]) -> Sequence[int]:
        with _at_work(f"running {len(policies)} placements on fake tensors, one by one"):
            spec = assemble.dry_run_spec(config, policies=policies, tries_kernels=is_for_cpu)
            return inspector.dry_run(spec).peaks_bytes

    request, notes = _for_ranks(request, options, dry_run)
    plan = make_plan(request, dry_run, dry_run_peaks)
    return plan.model_copy(update={"notes": (*_compiler_notes(config), *notes, *plan.notes)})


def _compiler_notes(config: SearchConfig) -> Iterator[str]:
    if config.model.compile_memory_budget is not None:
        yield (
            "model.compile_memory_budget is left out: what the compiler keeps within a budget cannot be told without "
            "running it; tune run measures it."
        )


def _is_for_ranks_on_a_cpu(config: SearchConfig, options: PlanOptions, inspection: ModelInspection) -> bool:
    """As `tune run` would find it on this machine, unless another device or cluster is named."""
    runner = config.runner
    if runner.device != "auto":
        return runner.device == "cpu"
    is_here = runner.ray_address is None and options.device_memory is None
    return is_here and inspection.environment.get("device_kind") == "cpu"


def _for_ranks(
    request: PlanRequest, options: PlanOptions, dry_run: DryRunResult
) -> tuple[PlanRequest, tuple[str, ...]]:
    """The request for the ranks that are asked for, and what is to be said of them."""
    strategy, cut = request.strategy, request.inspection.pipeline_cut
    if options.num_shards > 1:
        return replace(request, strategy="fsdp2", num_ranks=options.num_shards), ()
    if cut is not None:
        note = f"Predicted for {cut.num_stages} stages of a pipeline; each peak is that of the worst stage."
        if request.times is None:
            note += " FLOPs are those of all stages together: that stages wait for each other is not in them."
        return request, (note,)
    if strategy != "none" and dry_run.profile is not None and dry_run.profile.refusal is not None:
        note = f"Predicted for one process that trains alone: what {strategy} adds or divides is not in the peaks."
        return replace(request, strategy="none", num_ranks=1), (note,)
    if strategy == "ddp":
        note = f"Predicted for one of {request.num_ranks} ranks under ddp; gradient buckets are added."
        return request, (note,)
    return request, ()


def _device_memory(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_memory_size(text)
    except ValueError as error:
        raise PlanOptionError(f"--device-memory {error}") from error
    if size.num_bytes is None:
        raise PlanOptionError(f"--device-memory is {text}; it is what a share is taken of, write bytes such as 80GiB")
    return size.num_bytes


def _memory_cap(config: SearchConfig, inspection: ModelInspection, device_bytes: int | None) -> tuple[int, int | None]:
    """The cap, and the memory of the device where it is known.

    Raises:
        PlanOptionError: The cap is a share of a device that is not known, or is more than the device has.
    """
    size = config.memory_cap_size
    kind = inspection.environment.get("device_kind")
    if device_bytes is None and (config.runner.device == "cpu" or kind not in (None, "cpu")):
        device_bytes = inspection.device_memory_bytes
    if device_bytes is None:
        if size.num_bytes is None:
            raise PlanOptionError(
                f"memory_cap is {config.memory_cap}, a share of the device's memory, and which device that is cannot "
                f"be told here (runner.device is {config.runner.device}); say how much it has with --device-memory "
                "80GiB, or write memory_cap in bytes"
            )
        return size.num_bytes, None
    cap_bytes = size.bytes_on(device_bytes)
    if cap_bytes > device_bytes:
        raise PlanOptionError(
            f"memory_cap is {config.memory_cap}, but the device has {describe_bytes(device_bytes)}; lower it, for "
            "example to 90%, or name another --device-memory"
        )
    return cap_bytes, device_bytes


@contextmanager
def _at_work(what: str) -> Iterator[None]:
    """Says on standard error what takes its time: with a clock on a terminal, as one line elsewhere."""
    if not err_console.is_terminal:
        logger.info("%s", what)
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def _show(plan: Plan) -> None:
    model = plan.model
    lists = "; ".join(model.block_lists) or "no blocks found"
    show_text(f"{plan.study}: {model.model_class}, {model.num_parameters:,} parameters; {lists}")
    show_text("Nothing was run: all figures are predicted.")
    for table in plan_tables(plan):
        show(table)
    show_text(_answer(plan))
    for note in plan.notes:
        show_text(note)


def _answer(plan: Plan) -> str:
    cap = format_bytes(plan.memory_cap_bytes)
    if plan.best is not None:
        peak = format_bytes(plan.best.predicted_peak_memory_bytes)
        what = "Least recompute" if plan.time_unit == "plain step FLOPs" else "Fastest"
        return f"{what} predicted within {cap}: {plan.best.policy_summary}, predicted peak {peak}."
    if plan.anything_fits:
        return f"The table says what is predicted to fit {cap}."
    least = min([row.floor_bytes for row in plan.memory] or [each.predicted_peak_memory_bytes for each in plan.uniform])
    return f"Nothing is predicted to fit {cap}: the least predicted peak is {format_bytes(least)}."
