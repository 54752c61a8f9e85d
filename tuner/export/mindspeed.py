"""`--format mindspeed`: MindSpeed on Ascend, in Megatron mode by arguments and in its FSDP2 products by YAML.

The FSDP2 products recompute every module whose name matches one of a list of patterns, so blocks and units may be
chosen freely; a segment has no module and cannot be named.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from search_spaces.policy import BLOCK, NONE, RecomputePolicy, units_of
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.command_line import CommandLine
from tuner.export.forms import ANY_BLOCKS, ANY_MODULES, Form, layout_of
from tuner.export.megatron_arguments import (
    CONTRADICTING_ARGUMENTS,
    PIPELINE_STAGES,
    batch_arguments,
    megatron_forms,
    megatron_notes,
    recompute_arguments,
    rng_conflict,
)
from tuner.export.notes import autocast_note, processes_note
from tuner.export.shell_array import shell_array
from tuner.export.yaml_block import dump_yaml_block
from tuner.results import StudyResults, TrialRecord

_LLM, _MM, _MM_ANY_UNIT = "llm-fsdp2", "mm-fsdp2", "mm-fsdp2-units"
_FSDP2 = (_LLM, _MM, _MM_ANY_UNIT)
#: Switches of Megatron mode that recompute more or elsewhere than the arguments above say.
_SWITCHES = (
    "recompute_activation_function",
    "recompute_norm",
    "enable_recompute_layers_per_pp_rank",
    "recompute_in_bubble",
    "recompute_in_advance",
    "swap_attention",
)
_SWITCH_COUNTS = (
    "recompute_activation_function_num_layers",
    "recompute_norm_num_layers",
    "recompute_module_list",
    "automated_pipeline",
    "automated_pipeline_perf",
    "adaptive_recompute_device_size",
    "adaptive_recompute_profiling_step",
    "adaptive_recompute_device_swap",
    "adaptive_memory_optimization",
    "recompute_type",
)


class MindSpeedExporter:
    """Megatron mode follows Megatron core 0.12.1; the FSDP2 products are variants of their own."""

    name = "mindspeed"
    versions: tuple[StackVersion, ...] = (
        StackVersion(
            "megatron",
            "MindSpeed 26.0 and 26.1 in Megatron mode (core 0.12.1)",
            by_release=False,
            pipeline_key=PIPELINE_STAGES,
            command_line=CommandLine(separator="-", booleans="switch"),
        ),
        StackVersion(_LLM, "MindSpeed-LLM with FSDP2 (FSDPTurbo)", by_release=False),
        StackVersion(_MM, "MindSpeed-MM with FSDP2, as of August 2026", by_release=False),
        StackVersion(
            _MM_ANY_UNIT,
            "MindSpeed-MM with FSDP2 that checks what a forward accepts (with op replay)",
            by_release=False,
        ),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        if context.version.name == _MM:
            # It hands every wrapped module a keyword that only whole layers and some attention modules take.
            return (ANY_BLOCKS,)
        if context.version.name in _FSDP2:
            return (ANY_MODULES,)
        return megatron_forms(context, shorter_last_segment=False)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        return rng_conflict(policy)

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        settings = self.settings(trial.to_policy(), context)
        if context.version.command_line is None:
            return dump_yaml_block(settings)
        return shell_array("RECOMPUTE_ARGS", context.version.command_line.arguments(settings))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        batch = policy.batch
        patterns = list(_patterns(policy, context)) if context.version.name in _FSDP2 else []
        match context.version.name:
            case "llm-fsdp2":
                return {
                    "parallel": {"recompute": policy.recomputes, "recompute_modules": patterns},
                    "training": {
                        "per_device_train_batch_size": batch.micro_batch_size,
                        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
                    },
                }
            case "mm-fsdp2" | "mm-fsdp2-units":
                return {
                    "features": {
                        "recompute": policy.recomputes,
                        "recompute_plan": {"apply_modules": patterns, "use_reentrant": False},
                    },
                    "training": {
                        "micro_batch_size": batch.micro_batch_size,
                        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
                    },
                }
        switches = dict.fromkeys(_SWITCHES, False)
        return {**batch_arguments(policy), **recompute_arguments(policy, context), **switches}

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        if context.version.name == _LLM:
            return ()
        if context.version.name in _FSDP2:
            # Accumulation is not computed from it, whatever is documented: it is set to 1 and this is overwritten.
            return ("training.global_batch_size", "features.recompute_plan.op_replay_scopes")
        return (*CONTRADICTING_ARGUMENTS, *_SWITCH_COUNTS)

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        if context.version.name not in _FSDP2:
            return tuple(megatron_notes(policy, context))
        notes = [
            processes_note(policy),
            "the trial was measured without FSDP, whose shards and gathered parameters change the peak",
            *autocast_note(context, bfloat16="bf16 in the mixed-precision section", float16="fp16 there"),
        ]
        if policy.recomputes:
            notes += [
                "rng: RNG state is always kept, as in the trial",
                "a pattern that matches nothing is passed over silently: count what is recomputed once",
            ]
        return tuple(notes)


def _patterns(policy: RecomputePolicy, context: ExportContext) -> Iterator[str]:
    """Names of what is recomputed, adjacent blocks with one choice merged; no module is matched twice."""
    for blocks, cells in zip(context.block_lists, layout_of(policy, context.block_lists), strict=True):
        paths = dict(blocks.units)
        indices = range(len(cells))
        for action, run in groupby(indices, key=lambda index, cells=cells: cells[index][0]):  # type: ignore[misc]  # bound per turn
            numbers = list(run)
            if action == NONE:
                continue
            name = f"{blocks.path}.{_range(numbers[0], numbers[-1])}"
            if action == BLOCK:
                yield name
            else:
                yield from (f"{name}.{paths[unit]}" for unit in units_of(action))


def _range(first: int, last: int) -> str:
    """Both ends count; a single number stands plain, braces around one are an error there."""
    return str(first) if first == last else f"{{{first}-{last}}}"
