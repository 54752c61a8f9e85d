"""`--format axolotl`: keys of an axolotl YAML, which hands them to the transformers that it pins."""

from __future__ import annotations

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import EVERY_BLOCK, EVERY_BLOCK_BUT_OPERATORS, EVERY_KTH_FROM_THE_FIRST, NOTHING, Form, one_list
from tuner.export.layer_distance import layer_distance
from tuner.export.notes import autocast_note, processes_note, transformers_only_note
from tuner.export.yaml_block import dump_yaml_block
from tuner.results import StudyResults, TrialRecord


class AxolotlExporter:
    """Keys that axolotl's own schema checks."""

    name = "axolotl"
    versions: tuple[StackVersion, ...] = (
        StackVersion("0.19", "axolotl 0.19 (with its transformers 5.16)", "axolotl", since="0.19", until="0.20"),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        if _has_adapters(context):
            return (NOTHING, EVERY_BLOCK)
        return (NOTHING, EVERY_BLOCK, one_list(EVERY_KTH_FROM_THE_FIRST), EVERY_BLOCK_BUT_OPERATORS)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        keep_sets = _keep_sets(policy)
        if len(keep_sets) > 1:
            return Refusal("blocks keep the outputs of different operators", "one list of operators for all layers")
        return None

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return dump_yaml_block(self.settings(trial.to_policy(), context))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        arguments: dict[str, object] = {"use_reentrant": False, "preserve_rng_state": policy.preserve_rng_state}
        distance = layer_distance(policy, context.block_lists)
        if distance > 1:
            # Left out where it is 1: the loader of adapters hands the arguments to a call that does not know it.
            arguments["every_n_layers"] = distance
        return {
            "micro_batch_size": policy.batch.micro_batch_size,
            "gradient_accumulation_steps": policy.batch.gradient_accumulation_steps,
            "auto_find_batch_size": False,
            "gradient_checkpointing": policy.recomputes,
            "gradient_checkpointing_kwargs": arguments if policy.recomputes else None,
            "selective_checkpointing": {"save": _operator_names(policy)} if _keep_sets(policy) else None,
            "activation_offloading": False,
            "layer_offloading": False,
        }

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return (
            "batch_size",
            "gradient_checkpointing_kwargs.every_n_layers",
            "gradient_checkpointing_kwargs.offload",
        )

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        notes = [
            processes_note(policy),
            "leave batch_size out: axolotl takes two of the three batch keys",
            *autocast_note(context, bfloat16="bf16: true", float16="fp16: true"),
            *transformers_only_note(context),
        ]
        if _keep_sets(policy):
            notes.append(
                "selective_checkpointing.save holds parts of operator names and acts on all layers; the names are "
                "those of the device that was measured on"
            )
        if layer_distance(policy, context.block_lists) > 1:
            notes.append("every_n_layers holds for full fine-tunes; with adapter: lora or qlora axolotl cannot say it")
        return tuple(notes)


def _keep_sets(policy: RecomputePolicy) -> set[tuple[str, ...]]:
    regions = (region for placement in policy.placement for region in placement.regions)
    return {region.keep for region in regions if region.keep}


def _operator_names(policy: RecomputePolicy) -> list[str]:
    """As torch qualifies them, ``aten::mm``: overloads follow a dot, and the default one is left out."""
    (keep,) = _keep_sets(policy)
    names = (entry.split(".") for entry in keep)
    return [
        f"{space}::{operator}" + ("" if overload == "default" else f".{overload}")
        for space, operator, overload in names
    ]


def _has_adapters(context: ExportContext) -> bool:
    return context.model_class.startswith("Peft")
