"""Sentences for headers that several stacks need: what neither a config nor an exporter can see to."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext

#: Factories that take the name of a transformers model.
_TRANSFORMERS = "huggingface:"


def processes_note(policy: RecomputePolicy) -> str:
    """For stacks whose launcher decides on the number of processes."""
    return (
        f"the number of processes comes from the launcher; start {policy.batch.data_parallel_degree}, or the global "
        "batch is another one"
    )


def autocast_note(context: ExportContext, *, bfloat16: str, float16: str) -> Iterator[str]:
    """For trials that were measured under autocast: the stack's own setting for it; nothing for others."""
    if context.autocast is not None:
        setting = {"bfloat16": bfloat16, "float16": float16}[context.autocast]
        yield f"measured under autocast to {context.autocast}: set {setting}"


def compile_note(context: ExportContext) -> Iterator[str]:
    """For trials that ran compiled code: nothing for others."""
    if context.compile is not None:
        what = {"blocks": "each block by itself", "model": "the whole model"}[context.compile]
        yield f"measured with torch.compile of {what}: compile in training as well, or memory and speed are others"


def pipeline_note(context: ExportContext) -> Iterator[str]:
    """For trials that ran in stages: nothing for others."""
    if context.pipeline_stages > 1:
        yield (
            f"measured in a pipeline of {context.pipeline_stages} stages with 1F1B: cut the model alike in training, "
            "or memory and speed are others"
        )


def transformers_only_note(context: ExportContext) -> Iterator[str]:
    """For stacks whose keys reach transformers models alone; nothing where the study measured one by its name."""
    if context.model_factory and not context.model_factory.startswith(_TRANSFORMERS):
        yield (
            f"the study's model is {_model(context)}: these keys act only on a transformers model whose blocks are "
            f"{_blocks(context)}"
        )


def own_models_note(context: ExportContext, stack: str) -> str:
    """For stacks that build models by definitions of their own: what was measured instead."""
    return (
        f"{stack} trains model definitions of its own; measured was {_model(context)}, whose blocks are "
        f"{_blocks(context)}"
    )


def policy_file_note(how: str) -> str:
    """For exports through Python, whose placement stands in policy.yaml alone."""
    return f"the placement is not in this file: export it with --format policy to policy.yaml, and {how}"


def _model(context: ExportContext) -> str:
    name = context.model_class or "a model"
    return f"{name} from {context.model_factory}" if context.model_factory else name


def _blocks(context: ExportContext) -> str:
    return " and ".join(f"{blocks.path} ({blocks.num_blocks} x {blocks.kind})" for blocks in context.block_lists)
