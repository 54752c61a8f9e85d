"""`--format deepspeed`: the batch keys of a DeepSpeed JSON.

Its ``activation_checkpointing`` section chooses nothing: it tells calls of ``deepspeed.checkpointing.checkpoint``
how to keep their inputs, and models that make no such calls ignore it. So a placement is never claimed here.
"""

from __future__ import annotations

import json

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import ANYTHING, NOTHING, Form
from tuner.export.notes import policy_file_note
from tuner.results import StudyResults, TrialRecord


class DeepSpeedExporter:
    """All three batch keys, so that DeepSpeed itself checks that they agree."""

    name = "deepspeed"
    versions: tuple[StackVersion, ...] = (
        StackVersion("0.19", "DeepSpeed 0.9 and newer 0.x", "deepspeed", since="0.9", until="1"),
    )
    header_syntax: HeaderSyntax = "json"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        return (ANYTHING,) if context.through_python else (NOTHING,)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        return None

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return json.dumps(self.settings(trial.to_policy(), context))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        return {
            "train_batch_size": policy.batch.global_batch_size,
            "train_micro_batch_size_per_gpu": policy.batch.micro_batch_size,
            "gradient_accumulation_steps": policy.batch.gradient_accumulation_steps,
        }

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return ()

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        notes = [
            "only batch keys are here: DeepSpeed's activation_checkpointing section cannot choose what is recomputed; "
            "it configures calls of deepspeed.checkpointing.checkpoint that the model's own code must make",
            "an activation_checkpointing section of your own stays as it is",
            "with transformers' Trainer its batch arguments must say the same, or be auto",
        ]
        if context.through_python:
            notes.append(
                policy_file_note(
                    'call apply_policy(model, load_policy("policy.yaml")) from tuner before deepspeed.initialize'
                )
            )
        return tuple(notes)
