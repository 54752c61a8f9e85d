"""`--format mindspeed`: MindSpeed on Ascend, in Megatron mode by arguments and in its FSDP2 products by YAML.

The FSDP2 products recompute every module whose name matches one of a list of patterns, so blocks and units may be
chosen freely; a segment has no module and cannot be named.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from search_spaces.actions import kept_by
from search_spaces.policy import BLOCK, NONE, RecomputePolicy, units_of
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.command_line import CommandLine
from tuner.export.forms import (
    ANY_BLOCKS,
    ANY_MODULES,
    ANY_MODULES_OR_KEPT,
    Form,
    first_blocks_then,
    first_misfit,
    layout_of,
)
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
from tuner.export.settings_text import settings_text
from tuner.results import StudyResults, TrialRecord

_LLM, _MM, _MM_ANY_UNIT = "llm-fsdp2", "mm-fsdp2", "mm-fsdp2-units"
_FSDP2 = (_LLM, _MM, _MM_ANY_UNIT)
_OP_REPLAY = "features.recompute_plan.op_replay_scopes"
#: Switches of Megatron mode that recompute more or elsewhere than the arguments above say.
_SWITCHES = (
    "recompute_activation_function",
    "recompute_norm",
    "enable_recompute_layers_per_pp_rank",
    "recompute_in_bubble",
    "recompute_in_advance",
    "swap_attention",
)
#: Its switch for a unit, of which ``..._num_layers`` are recomputed after the layers that are recomputed whole.
_UNIT_SWITCHES = {"activation": "recompute_activation_function", "norm": "recompute_norm"}
_SWITCH_COUNTS = (
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
        if context.version.name == _MM_ANY_UNIT:
            return (ANY_MODULES_OR_KEPT,)
        if context.version.name in _FSDP2:
            return (ANY_MODULES,)
        return (*_core_forms(context), *map(first_blocks_then, _UNIT_SWITCHES))

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        return rng_conflict(policy)

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return settings_text(self.settings(trial.to_policy(), context), context.version.command_line)

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
                plan: dict[str, object] = {"apply_modules": patterns, "use_reentrant": False}
                features: dict[str, object] = {"recompute": policy.recomputes, "recompute_plan": plan}
                scopes = _op_replay_scopes(policy, context)
                if scopes:
                    plan["op_replay_scopes"] = scopes
                    # Kept outputs stay on the device, as in the trial; by default they are swapped out beyond 1 GiB.
                    features["swap_plan"] = {"capacity_mb": -1}
                return {
                    "features": features,
                    "training": {
                        "micro_batch_size": batch.micro_batch_size,
                        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
                    },
                }
        switches: dict[str, object] = dict.fromkeys(_SWITCHES, False)
        switches |= dict.fromkeys((f"{switch}_num_layers" for switch in _UNIT_SWITCHES.values()), None)
        if first_misfit(policy, _core_forms(context), context.block_lists) is None:
            return {**batch_arguments(policy), **recompute_arguments(policy, context), **switches}
        return {**batch_arguments(policy), **_blocks_then_unit(policy, context, switches)}

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        if context.version.name == _LLM:
            return ()
        if context.version.name in _FSDP2:
            # Accumulation is not computed from it, whatever is documented: it is set to 1 and this is overwritten.
            obsolete = ("training.global_batch_size",)
            return obsolete if context.version.name == _MM_ANY_UNIT else (*obsolete, _OP_REPLAY)
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


def _core_forms(context: ExportContext) -> tuple[Form, ...]:
    """What Megatron's own arguments say."""
    return megatron_forms(context, shorter_last_segment=False)


def _blocks_then_unit(
    policy: RecomputePolicy, context: ExportContext, switches: dict[str, object]
) -> dict[str, object]:
    """Some first layers whole, and a unit of the next ones."""
    (cells,) = layout_of(policy, context.block_lists)
    actions = [action for action, _, _ in cells]
    num_whole = actions.count(BLOCK)
    unit = next(unit for unit in _UNIT_SWITCHES if unit in actions)
    return {
        "recompute_granularity": "full" if num_whole else None,
        "recompute_method": "block" if num_whole else None,
        "recompute_num_layers": num_whole or None,
        "recompute_modules": None,
        "distribute_saved_activations": False,
        **switches,
        _UNIT_SWITCHES[unit]: True,
        f"{_UNIT_SWITCHES[unit]}_num_layers": actions.count(unit),
    }


def _op_replay_scopes(policy: RecomputePolicy, context: ExportContext) -> list[dict[str, object]]:
    """What is kept of which blocks; one scope for each run of blocks with one keep-set."""
    scopes: list[dict[str, object]] = []
    for blocks, cells in zip(context.block_lists, layout_of(policy, context.block_lists), strict=True):
        for action, run in groupby(range(len(cells)), key=lambda index, cells=cells: cells[index][0]):  # type: ignore[misc]  # bound per turn
            numbers = list(run)
            if kept_by(action):
                pattern = f"{blocks.path}.{_range(numbers[0], numbers[-1])}"
                keep = list(kept_by(action))
                name = f"keep_{len(scopes)}"
                scopes.append({"name": name, "apply_modules": [pattern], "cache_ops": keep, "save_rng": True})
    return scopes


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
            if action == BLOCK or kept_by(action):
                yield name
            else:
                yield from (f"{name}.{paths[unit]}" for unit in units_of(action))


def _range(first: int, last: int) -> str:
    """Both ends count; a single number stands plain, braces around one are an error there."""
    return str(first) if first == last else f"{{{first}-{last}}}"
