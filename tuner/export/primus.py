"""`--format primus`: overrides of AMD Primus' Megatron trainer, which beside Megatron's own forms takes any blocks."""

from __future__ import annotations

from search_spaces.policy import BLOCK, RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import ANY_BLOCKS, Form, first_misfit, layout_of
from tuner.export.megatron_arguments import (
    CONTRADICTING_ARGUMENTS,
    PIPELINE_STAGES,
    batch_arguments,
    megatron_forms,
    megatron_notes,
    recompute_arguments,
    rng_conflict,
)
from tuner.export.yaml_block import dump_yaml_block
from tuner.results import StudyResults, TrialRecord

_SECTION = ("modules", "pre_trainer", "overrides")


class PrimusExporter:
    """Its numbers of blocks are those of the whole model; an empty list of them is an error there."""

    name = "primus"
    versions: tuple[StackVersion, ...] = (
        StackVersion(
            "megatron",
            "AMD Primus, Megatron backend, as of August 2026",
            by_release=False,
            pipeline_key=".".join((*_SECTION, PIPELINE_STAGES)),
        ),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        any_blocks = (ANY_BLOCKS,) if len(context.block_lists) == 1 else ()
        return (*_megatron_forms(context), *any_blocks)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        return rng_conflict(policy)

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return dump_yaml_block(self.settings(trial.to_policy(), context))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        settings: dict[str, object] = {**batch_arguments(policy), **_recompute(policy, context)}
        for name in reversed(_SECTION):
            settings = {name: settings}
        return settings

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return tuple(".".join((*_SECTION, key)) for key in CONTRADICTING_ARGUMENTS)

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        return tuple(megatron_notes(policy, context))


def _megatron_forms(context: ExportContext) -> tuple[Form, ...]:
    return megatron_forms(context, shorter_last_segment=False)


def _recompute(policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
    """Megatron's arguments where they suffice, else numbers of blocks beside ``full`` and without a method."""
    if first_misfit(policy, _megatron_forms(context), context.block_lists) is None:
        return {**recompute_arguments(policy, context), "recompute_layer_ids": None}
    (cells,) = layout_of(policy, context.block_lists)
    return {
        "recompute_granularity": "full",
        "recompute_method": None,
        "recompute_num_layers": None,
        "recompute_modules": None,
        "recompute_layer_ids": [index for index, (action, _, _) in enumerate(cells) if action == BLOCK],
        "distribute_saved_activations": False,
    }
