"""`--format llamafactory`: arguments of LLaMA-Factory, which recomputes every layer unless it is told not to."""

from __future__ import annotations

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import EVERY_BLOCK, NOTHING, Form
from tuner.export.notes import autocast_note, processes_note, transformers_only_note
from tuner.export.yaml_block import dump_yaml_block
from tuner.results import StudyResults, TrialRecord

_V1 = "v1"


class LlamaFactoryExporter:
    """Arguments of a training YAML, of the classic trainer or of the new one (``USE_V1=1``)."""

    name = "llamafactory"
    versions: tuple[StackVersion, ...] = (
        StackVersion("0.9", "LLaMA-Factory 0.9", "llamafactory", since="0.9", until="0.10"),
        StackVersion(
            _V1, "LLaMA-Factory 0.9.5 under USE_V1", "llamafactory", since="0.9.5", until="0.10", by_release=False
        ),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        return (NOTHING, EVERY_BLOCK)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        if policy.preserve_rng_state or not policy.recomputes:
            return None
        return Refusal(
            "preserve_rng_state is false",
            "true only: it passes nothing on to recompute but whether it is reentrant",
            "search with placement.preserve_rng_state: true",
        )

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return dump_yaml_block(self.settings(trial.to_policy(), context))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        batch = policy.batch
        if context.version.name == _V1:
            return {
                "micro_batch_size": batch.micro_batch_size,
                "global_batch_size": batch.global_batch_size,
                "enable_activation_checkpointing": policy.recomputes,
            }
        return {
            "per_device_train_batch_size": batch.micro_batch_size,
            "gradient_accumulation_steps": batch.gradient_accumulation_steps,
            "auto_find_batch_size": False,
            "disable_gradient_checkpointing": not policy.recomputes,
            # The trainer's own switch stays off: two would recompute twice.
            "gradient_checkpointing": False,
            "use_reentrant_gc": False,
            "use_unsloth_gc": False,
        }

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return ()

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        return (
            processes_note(policy),
            *autocast_note(context, bfloat16="bf16: true", float16="fp16: true"),
            *transformers_only_note(context),
        )
