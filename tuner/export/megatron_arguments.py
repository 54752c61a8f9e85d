"""Megatron-LM's arguments for recompute and batch, which Megatron-LM, MindSpeed and Primus share.

``full`` takes a method and a number of layers, ``selective`` takes modules and neither of the two, and the two never
mix. RNG state is always kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from search_spaces.model_shape import BlockList
from search_spaces.policy import BLOCK, NONE, SEGMENT, RecomputePolicy
from search_spaces.unit_span import is_spans, parse_spans
from tuner.export.base import ExportContext, Refusal
from tuner.export.forms import (
    EQUAL_SEGMENTS,
    EVERY_BLOCK,
    FIRST_BLOCKS,
    NOTHING,
    SEGMENTS,
    Cell,
    Form,
    depends_on_position,
    every_unit,
    layout_of,
    one_list,
)
from tuner.export.notes import autocast_note, own_models_note

#: The unit that the module ``mlp`` of ``selective`` recomputes, and the one of its module ``layernorm``: both norms of
#: a layer, whose outputs are let go and made anew for the projections that take them in.
_MLP, _NORM = "mlp", "norm"
_MODULES = {_MLP: "mlp", _NORM: "layernorm"}
#: Names of classes whose MLP is a mixture of experts, which the module ``mlp`` leaves alone.
_EXPERTS = re.compile("moe|mixtral|expert", re.IGNORECASE)

#: Divides the model into stages, in each of which blocks are counted anew.
PIPELINE_STAGES = "pipeline_model_parallel_size"
#: Arguments that contradict a measured policy wherever a user's file has them.
CONTRADICTING_ARGUMENTS = (
    # Lowers the batch silently where it does not divide.
    "decrease_batch_size_if_needed",
    # Shorthands and predecessors of what is set here.
    "checkpoint_activations",
    "checkpoint_granularity",
    "checkpoint_method",
    "checkpoint_num_layers",
    "recompute_activations",
    "moe_layer_recompute",
)


def megatron_forms(context: ExportContext, *, shorter_last_segment: bool) -> tuple[Form, ...]:
    """What one pipeline stage can say.

    Args:
        shorter_last_segment: Whether segments need not divide the number of layers.
    """
    segments = SEGMENTS if shorter_last_segment else EQUAL_SEGMENTS
    mlps = () if any(map(_has_experts, context.block_lists)) else (every_unit(_MLP),)
    norms = (every_unit(_NORM),) if all(map(_has_both_norms, context.block_lists)) else ()
    return (NOTHING, EVERY_BLOCK, one_list(FIRST_BLOCKS), segments, *mlps, *norms)


def rng_conflict(policy: RecomputePolicy) -> Refusal | None:
    """The refusal of a policy that was measured without RNG state kept."""
    if policy.preserve_rng_state or not policy.recomputes:
        return None
    return Refusal(
        "preserve_rng_state is false",
        "true only: it always keeps RNG state and has no argument for it",
        "search with placement.preserve_rng_state: true",
    )


def recompute_arguments(policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
    """Arguments by the names of Megatron's own config fields; None is an argument that must not be given."""
    granularity, method, number, modules = _chosen(policy, context)
    return {
        "recompute_granularity": granularity,
        "recompute_method": method,
        "recompute_num_layers": number,
        "recompute_modules": modules,
        "distribute_saved_activations": False,
    }


def batch_arguments(policy: RecomputePolicy) -> dict[str, object]:
    """Accumulation is derived from these two; no argument takes it."""
    return {
        "micro_batch_size": policy.batch.micro_batch_size,
        "global_batch_size": policy.batch.global_batch_size,
    }


def megatron_notes(policy: RecomputePolicy, context: ExportContext) -> Iterator[str]:
    """Sentences for the header."""
    batch = policy.batch
    yield own_models_note(context, "Megatron")
    yield (
        f"the data-parallel degree (devices / tensor / pipeline / context parallel) must be "
        f"{batch.data_parallel_degree}; {batch.gradient_accumulation_steps} micro-batches per step follow from it"
    )
    if depends_on_position(layout_of(policy, context.block_lists)):
        yield f"for {PIPELINE_STAGES} 1: with more stages these arguments count within each stage"
    yield from autocast_note(context, bfloat16="bf16", float16="fp16")
    if policy.recomputes:
        yield "rng: RNG state is always kept, as in the trial"
    actions = {action for action, _, _ in _cells(policy, context)}
    if _NORM in actions:
        yield "layernorm under fp8 needs Transformer Engine 2.6 or newer, and not delayed scaling"
    if any(_MLP in action.split("+") for action, _, _ in _cells(policy, context)):
        yield "selective recompute of mlp acts on dense layers only, not on mixtures of experts"


def _chosen(policy: RecomputePolicy, context: ExportContext) -> tuple[str | None, str | None, int | None, object]:
    """Granularity, method, number of layers and modules, in one of the mixes that Megatron accepts."""
    cells = _cells(policy, context)
    if not policy.recomputes:
        return None, None, None, None
    action, first, last = cells[0]
    if action == SEGMENT:
        return "full", "uniform", last - first + 1, None
    if action != BLOCK:
        return "selective", None, None, [_MODULES[action]]
    number = sum(action == BLOCK for action, _, _ in cells)
    is_everywhere = all(action != NONE for action, _, _ in cells)
    return ("full", "uniform", 1, None) if is_everywhere else ("full", "block", number, None)


def _cells(policy: RecomputePolicy, context: ExportContext) -> list[Cell]:
    return [cell for of_list in layout_of(policy, context.block_lists) for cell in of_list]


def _has_both_norms(blocks: BlockList) -> bool:
    """Whether the unit is what Megatron's module is: the norm before attention and the one before the MLP."""
    path = dict(blocks.units).get(_NORM, "")
    return is_spans(path) and len(parse_spans(path)) == 2


def _has_experts(blocks: BlockList) -> bool:
    return any(_EXPERTS.search(name) for name in (blocks.kind, *dict(blocks.units).values()))
