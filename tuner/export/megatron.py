"""`--format megatron`: arguments of Megatron-LM as a shell array or as YAML, and Megatron-Bridge's YAML."""

from __future__ import annotations

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.command_line import CommandLine
from tuner.export.forms import Form
from tuner.export.megatron_arguments import (
    CONTRADICTING_ARGUMENTS,
    PIPELINE_STAGES,
    batch_arguments,
    megatron_forms,
    megatron_notes,
    recompute_arguments,
    rng_conflict,
)
from tuner.export.settings_text import settings_text
from tuner.results import StudyResults, TrialRecord

_PACKAGE = "megatron-core"
_COMMAND_LINE = CommandLine(separator="-", booleans="switch")
_BRIDGE = "bridge"
#: Versions whose segments need not divide the layers of a stage: up to 0.16.1 the last one reads past the end
#: (https://github.com/NVIDIA/Megatron-LM/issues/1807).
_SHORTER_LAST_SEGMENT = ("0.20", "0.20-yaml", _BRIDGE)


def _arguments(name: str, covers: str, *, since: str, until: str) -> StackVersion:
    return StackVersion(name, covers, _PACKAGE, since, until, pipeline_key=PIPELINE_STAGES, command_line=_COMMAND_LINE)


def _yaml(name: str, covers: str, package: str, *, section: str = "") -> StackVersion:
    return StackVersion(name, covers, package, by_release=False, pipeline_key=section + PIPELINE_STAGES)


class MegatronExporter:
    """The names are those of Megatron's config fields; on a command line they are written with dashes."""

    name = "megatron"
    versions: tuple[StackVersion, ...] = (
        _arguments("0.16", "Megatron-LM with core 0.12 to 0.16", since="0.12", until="0.17"),
        _arguments("0.20", "Megatron-LM with core 0.20", since="0.20", until="0.21"),
        _yaml("0.16-yaml", "the same arguments of core 0.12 to 0.16 as YAML", _PACKAGE),
        _yaml("0.20-yaml", "the same arguments of core 0.20 as YAML", _PACKAGE),
        _yaml(_BRIDGE, "Megatron-Bridge 0.7, as YAML", "megatron-bridge", section="model."),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        return megatron_forms(context, shorter_last_segment=context.version.name in _SHORTER_LAST_SEGMENT)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        return rng_conflict(policy)

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return settings_text(self.settings(trial.to_policy(), context), context.version.command_line)

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        batch, recompute = batch_arguments(policy), recompute_arguments(policy, context)
        if context.version.name == _BRIDGE:
            return {"train": batch, "model": recompute}
        return {**batch, **recompute}

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        sections = {"decrease_batch_size_if_needed": "train."}
        if context.version.name == _BRIDGE:
            return tuple(f"{sections.get(key, 'model.')}{key}" for key in CONTRADICTING_ARGUMENTS)
        return CONTRADICTING_ARGUMENTS

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        return tuple(megatron_notes(policy, context))
