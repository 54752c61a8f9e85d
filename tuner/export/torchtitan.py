"""`--format torchtitan`: sections of its TOML up to 0.2, and from 0.3 on Python for its trainer config.

What the config cannot say, `tuner.integrations.torchtitan` does from 0.3 on, whose recompute policies are classes.
"""

from __future__ import annotations

from search_spaces.policy import BLOCK, NONE, RecomputePolicy
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import (
    ANY_WITHOUT_SEGMENTS,
    EVERY_BLOCK,
    EVERY_KTH_FROM_THE_KTH,
    NOTHING,
    Form,
    layout_of,
    one_list,
)
from tuner.export.notes import autocast_note, own_models_note, policy_file_note
from tuner.export.toml_text import dump_toml
from tuner.results import StudyResults, TrialRecord

_PACKAGE = "torchtitan"
#: Versions that are configured in Python; the others read TOML.
_IN_PYTHON = ("0.3", "tokens")
#: Versions that hard-code that RNG state is not kept.
_RNG_OFF = ("0.2.0", "0.1")
#: After the last release: batches are given in tokens.
_BATCH_IN_TOKENS = "tokens"


def _toml(name: str, covers: str, *, since: str, until: str) -> StackVersion:
    return StackVersion(name, covers, _PACKAGE, since, until, pipeline_key="parallelism.pipeline_parallel_degree")


class TorchtitanExporter:
    """Batch keys are the micro-batch and the global batch: accumulation is derived, no key takes it."""

    name = "torchtitan"
    versions: tuple[StackVersion, ...] = (
        StackVersion("0.3", "torchtitan 0.3", _PACKAGE, since="0.3", until="0.4"),
        _toml("0.2.2", "torchtitan 0.2.1 and 0.2.2", since="0.2.1", until="0.3"),
        _toml("0.2.0", "torchtitan 0.2.0", since="0.2", until="0.2.1"),
        _toml("0.1", "torchtitan 0.1", since="0.1", until="0.2"),
        StackVersion(
            _BATCH_IN_TOKENS, "torchtitan after 0.3, where batches are given in tokens", _PACKAGE, by_release=False
        ),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        if _is_python(context):
            # Segments join what torchtitan shards block by block.
            return (ANY_WITHOUT_SEGMENTS,) if context.through_python else (NOTHING, EVERY_BLOCK)
        # It counts wrapped blocks over the whole process from 1 on.
        return (NOTHING, EVERY_BLOCK, one_list(EVERY_KTH_FROM_THE_KTH))

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        if context.version.name in _RNG_OFF and policy.recomputes and policy.preserve_rng_state:
            return Refusal(
                "preserve_rng_state is true",
                "false only: it never keeps RNG state",
                "search with placement.preserve_rng_state: false",
            )
        if context.version.name == _BATCH_IN_TOKENS and context.sequence_length is None:
            return Refusal(
                f"micro_batch_size is {policy.batch.micro_batch_size} samples of no known length",
                "batches in tokens only",
                "name batch.sequence_length and search again",
            )
        return None

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        policy = trial.to_policy()
        return _python(policy, context) if _is_python(context) else dump_toml(self.settings(policy, context))

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        if _is_python(context):
            return {}
        return {
            "training": _batch(policy, context),
            "activation_checkpoint": _activation_checkpoint(policy, context),
        }

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return ()

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        batch = policy.batch
        compiled = "" if context.compile else "; torch.compile was off when the trial was measured"
        notes = [
            own_models_note(context, "torchtitan"),
            f"the data-parallel degree (dp_replicate x dp_shard) must be {batch.data_parallel_degree}; torchtitan then "
            f"accumulates {batch.gradient_accumulation_steps} micro-batches by itself",
            f"for one pipeline stage{compiled}",
            *autocast_note(
                context,
                bfloat16='training.mixed_precision_param to "bfloat16"',
                float16='training.mixed_precision_param to "float16"',
            ),
        ]
        if context.sequence_length is not None and context.version.name != _BATCH_IN_TOKENS:
            notes.append(f"measured with training.seq_len {context.sequence_length}")
        if context.through_python and _is_python(context):
            notes.append(policy_file_note("tune the model that torchtitan trains, so that the names of blocks agree"))
        elif policy.recomputes and _is_python(context):
            notes.append(
                "FullAC recomputes each block to its end, while the trial stopped where backward had all it needs: "
                "slower than was measured; --python recomputes as measured"
            )
        return tuple(notes)


def _is_python(context: ExportContext) -> bool:
    return context.version.name in _IN_PYTHON


def _batch(policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
    batch = policy.batch
    if context.version.name == _BATCH_IN_TOKENS:
        length = context.sequence_length
        assert length is not None, "conflict() refuses that"
        return {
            "num_tokens_per_microbatch_per_dp_rank": batch.micro_batch_size * length,
            "num_tokens_per_train_step": batch.global_batch_size * length,
            "max_context_length": length,
        }
    return {"local_batch_size": batch.micro_batch_size, "global_batch_size": batch.global_batch_size}


def _activation_checkpoint(policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
    section: dict[str, object] = {"mode": _mode(policy, context)}
    if section["mode"] == "selective":
        section["selective_ac_option"] = str(_first_recomputed(policy, context) + 1)
    if context.version.name != "0.1":
        # As torch does by default, and as the trial was measured.
        section["early_stop"] = True
    if context.version.name not in _RNG_OFF:
        section |= {
            "preserve_rng_state": policy.preserve_rng_state,
            "determinism_check": "default",
            "debug": False,
        }
    return section


def _mode(policy: RecomputePolicy, context: ExportContext) -> str:
    actions = _actions(policy, context)
    if NONE not in actions:
        return "full"
    return "selective" if BLOCK in actions else "none"


def _first_recomputed(policy: RecomputePolicy, context: ExportContext) -> int:
    return _actions(policy, context).index(BLOCK)


def _actions(policy: RecomputePolicy, context: ExportContext) -> list[str]:
    return [action for of_list in layout_of(policy, context.block_lists) for action, _, _ in of_list]


def _python(policy: RecomputePolicy, context: ExportContext) -> str:
    batch = "\n".join(f"    config.training.{key} = {value}" for key, value in _batch(policy, context).items())
    if context.through_python:
        lines, value = _INTEGRATION, f"{_POLICY_CLASS}.Config(policy_file={POLICY_FILE!r})"
    elif policy.recomputes:
        arguments = f'preserve_rng_state={policy.preserve_rng_state}, determinism_check="default", debug=False'
        lines, value = _FULL, f"FullAC.Config({arguments})"
    else:
        lines, value = "", "None"
    return _FUNCTION.format(imports=lines, value=value, batch=batch)


POLICY_FILE = "policy.yaml"
_POLICY_CLASS = "MeasuredPolicy"
_INTEGRATION = f"from tuner.integrations.torchtitan import {_POLICY_CLASS}\n\n\n"
_FULL = "from torchtitan.distributed.activation_checkpoint import FullAC\n\n\n"
_FUNCTION = '''
{imports}def with_measured_policy(config):
    """Sets what was measured in a trainer config, in place; call it in your config function and return the result."""
    config.activation_checkpoint = {value}
{batch}
    return config
'''
