"""`--format huggingface`: fields of transformers' TrainingArguments as YAML.

The Trainer recomputes whole layers: all of them, or from 5.16 on every k-th one, counted over the whole model. What it
cannot say, `tuner.integrations.huggingface` does in training code.
"""

from __future__ import annotations

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.command_line import CommandLine
from tuner.export.forms import ANYTHING, EVERY_BLOCK, EVERY_KTH_FROM_THE_FIRST, NOTHING, Form, one_list
from tuner.export.layer_distance import layer_distance
from tuner.export.notes import autocast_note, policy_file_note, processes_note, transformers_only_note
from tuner.export.yaml_block import dump_yaml_block
from tuner.results import StudyResults, TrialRecord

_PACKAGE = "transformers"
#: As HfArgumentParser reads the same fields.
_COMMAND_LINE = CommandLine(separator="_", booleans="word")
#: Renamed in 5.23.0; the old names are aliases until 6.
_NAMES = ("activation_checkpointing", "activation_checkpointing_kwargs")
_OLD_NAMES = ("gradient_checkpointing", "gradient_checkpointing_kwargs")


def _version(name: str, covers: str, *, since: str, until: str) -> StackVersion:
    return StackVersion(name, covers, _PACKAGE, since, until, command_line=_COMMAND_LINE)


class HuggingFaceExporter:
    """Fields that ``HfArgumentParser`` reads."""

    name = "huggingface"
    versions: tuple[StackVersion, ...] = (
        _version("5.23", "transformers 5.23 and newer 5.x", since="5.23", until="6"),
        _version("5.17", "transformers 5.17 to 5.22", since="5.17", until="5.23"),
        _version("5.16", "transformers 5.16", since="5.16", until="5.17"),
        _version("5.0", "transformers 5.0 to 5.15", since="5.0", until="5.16"),
        _version("4.57", "transformers 4.35 to 4.57", since="4.35", until="5.0"),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        if context.through_python:
            return (ANYTHING,)
        if _counts_layers(context):
            # The Trainer counts the layers of the whole model in the order of its modules, which with several lists
            # need not be the order in which they run.
            return (NOTHING, EVERY_BLOCK, one_list(EVERY_KTH_FROM_THE_FIRST))
        return (NOTHING, EVERY_BLOCK)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        return None

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return dump_yaml_block(self.settings(trial.to_policy(), context))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        switch, arguments = _names(context)
        recomputes = policy.recomputes and not context.through_python
        return {
            "per_device_train_batch_size": policy.batch.micro_batch_size,
            "gradient_accumulation_steps": policy.batch.gradient_accumulation_steps,
            # It would lower the first on its own and leave the second: another global batch.
            "auto_find_batch_size": False,
            switch: recomputes,
            arguments: _arguments(policy, context) if recomputes else None,
            **({} if _is_before_5(context) else {"use_cache": False}),
        }

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        names = _names(context)
        # Arguments of a user's own stay beside those that are set; of these this version knows nothing.
        unknown = [
            *([] if _counts_layers(context) else ["every_n_layers"]),
            *([] if _offloads(context) else ["offload"]),
        ]
        return (*(_OLD_NAMES if names == _NAMES else _NAMES), *(f"{names[1]}.{key}" for key in unknown))

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        notes = [processes_note(policy), *autocast_note(context, bfloat16="bf16: true", float16="fp16: true")]
        if _is_before_5(context):
            notes.append("measured without a key-value cache: set use_cache to false in the model's config")
        if context.through_python:
            return (
                *notes,
                policy_file_note(
                    'give the Trainer callbacks=[RecomputeCallback("policy.yaml")] from tuner.integrations.huggingface'
                ),
            )
        notes += transformers_only_note(context)
        if policy.recomputes:
            notes.append("under FSDP keep activation_checkpointing out of fsdp_config: the two must not both be set")
        return tuple(notes)


def _names(context: ExportContext) -> tuple[str, str]:
    return _NAMES if context.version.name == "5.23" else _OLD_NAMES


def _is_before_5(context: ExportContext) -> bool:
    return context.version.name == "4.57"


def _counts_layers(context: ExportContext) -> bool:
    return context.version.name in ("5.23", "5.17", "5.16")


def _offloads(context: ExportContext) -> bool:
    return context.version.name in ("5.23", "5.17")


def _arguments(policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
    """What the Trainer hands on; once one is given its own defaults are gone, so all are."""
    arguments: dict[str, object] = {"use_reentrant": False, "preserve_rng_state": policy.preserve_rng_state}
    if _counts_layers(context):
        arguments["every_n_layers"] = layer_distance(policy, context.block_lists)
    if _offloads(context):
        arguments["offload"] = False
    return arguments
