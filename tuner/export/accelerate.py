"""`--format accelerate`: the FSDP plugin in the config file of ``accelerate launch``.

The plugin recomputes what its wrapping policy matches, with the RNG handling that its FSDP version has built in. Up to
1.14 FSDP2 recomputed the children of matched layers one by one, norms included, which is no placement that we measure.
"""

from __future__ import annotations

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import ANYTHING, EVERY_BLOCK, NOTHING, Form
from tuner.export.notes import autocast_note, policy_file_note
from tuner.export.yaml_block import dump_yaml_block
from tuner.results import StudyResults, TrialRecord

_FSDP1 = "fsdp1"
_NEWEST = "1.15"


class AccelerateExporter:
    """What ``accelerate launch --config_file`` reads."""

    name = "accelerate"
    versions: tuple[StackVersion, ...] = (
        StackVersion(_NEWEST, "accelerate 1.15 and newer 1.x with FSDP2", "accelerate", since="1.15", until="2"),
        StackVersion("1.14", "accelerate 1.6 to 1.14 with FSDP2", "accelerate", since="1.6", until="1.15"),
        StackVersion(_FSDP1, "accelerate 1.x with FSDP1", "accelerate", since="1.0", until="2", by_release=False),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        if context.through_python:
            return (ANYTHING,)
        return (NOTHING,) if context.version.name == "1.14" else (NOTHING, EVERY_BLOCK)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        preserves = context.version.name == _FSDP1
        if context.through_python or not policy.recomputes or policy.preserve_rng_state == preserves:
            return None
        other = "the FSDP2 plugin" if preserves else f"--stack-version {_FSDP1}"
        return Refusal(
            f"preserve_rng_state is {str(policy.preserve_rng_state).lower()}",
            f"{str(preserves).lower()} only, which is built in",
            f"{other} does the other; or search with placement.preserve_rng_state: search",
        )

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return dump_yaml_block(self.settings(trial.to_policy(), context))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        recomputes = policy.recomputes and not context.through_python
        plugin: dict[str, object] = {
            "fsdp_version": 1 if context.version.name == _FSDP1 else 2,
            "fsdp_activation_checkpointing": recomputes,
        }
        if context.version.name == _NEWEST:
            plugin["fsdp_activation_checkpointing_offload"] = False
        plugin["fsdp_auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP"
        plugin["fsdp_transformer_layer_cls_to_wrap"] = _block_classes(context)
        return {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "FSDP",
            "num_processes": policy.batch.data_parallel_degree,
            "fsdp_config": plugin,
        }

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return ()

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        batch = policy.batch
        notes = [
            f"the config file has no key for the batch: give the dataloader batch_size={batch.micro_batch_size}, and "
            f"Accelerator(gradient_accumulation_steps={batch.gradient_accumulation_steps})",
            "the trial was measured without FSDP, whose shards and gathered parameters change the peak",
        ]
        if context.version.name != _FSDP1 and policy.recomputes and not context.through_python:
            notes.append("before 1.15 the same file recomputes each child of a block on its own, norms included")
        notes += autocast_note(context, bfloat16="mixed_precision: bf16", float16="mixed_precision: fp16")
        if context.through_python:
            notes.append(
                policy_file_note(
                    'call apply_policy(model, load_policy("policy.yaml")) from tuner before accelerator.prepare'
                )
            )
        return tuple(notes)


def _block_classes(context: ExportContext) -> str:
    """Class names of the blocks, joined by commas as the plugin splits them."""
    return ",".join(dict.fromkeys(name for blocks in context.block_lists for name in blocks.kind.split("|")))
