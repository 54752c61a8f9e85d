"""`--format lightning`: Python that builds the arguments of Lightning's Trainer.

Only its FSDP strategy recomputes, by a set of classes, so whatever is recomputed must be all modules of some classes.
Other placements and other strategies take `tuner.integrations.lightning`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations

from search_spaces.model_shape import BlockList
from search_spaces.policy import BLOCK, NONE, RecomputePolicy
from search_spaces.unit_span import is_spans
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import ANYTHING, EVERY_BLOCK, NOTHING, Form, every_unit, layout_of
from tuner.export.notes import autocast_note, policy_file_note
from tuner.results import StudyResults, TrialRecord


class LightningExporter:
    """A module with ``trainer_arguments(model)``."""

    name = "lightning"
    versions: tuple[StackVersion, ...] = (
        StackVersion("2.6", "Lightning 2.2 to 2.6", "lightning", since="2.2", until="2.7"),
    )
    header_syntax: HeaderSyntax = "hash"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        if context.through_python:
            return (ANYTHING,)
        return (NOTHING, EVERY_BLOCK, *_every_unit(context.block_lists))

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        if context.through_python or policy.preserve_rng_state or not policy.recomputes:
            return None
        return Refusal(
            "preserve_rng_state is false",
            "true only: its strategy passes nothing on to recompute",
            "search with placement.preserve_rng_state: true",
        )

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        policy = trial.to_policy()
        if context.through_python:
            return _CALLBACK.format(a=policy.batch.gradient_accumulation_steps)
        if not policy.recomputes:
            return _PLAIN.format(a=policy.batch.gradient_accumulation_steps)
        return _BY_CLASS.format(
            a=policy.batch.gradient_accumulation_steps, names=_quoted(list(_module_names(policy, context)))
        )

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        return {}

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return ()

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        batch = policy.batch
        notes = [
            f"give the dataloader batch_size={batch.micro_batch_size}, and start {batch.data_parallel_degree} devices, "
            "or the global batch is another one",
            *autocast_note(context, bfloat16='precision="bf16-mixed"', float16='precision="16-mixed"'),
        ]
        if context.through_python:
            notes.append(policy_file_note("put that file beside the training script"))
        elif policy.recomputes:
            notes.append("the trial was measured without FSDP, whose shards and gathered parameters change the peak")
        return tuple(notes)


def _every_unit(lists: tuple[BlockList, ...]) -> Iterator[Form]:
    """Every combination of the units that have a class: a path that names a method has none."""
    if not lists:
        return
    names = [name for name, path in lists[0].units if not path.endswith("()") and not is_spans(path)]
    for number in range(1, len(names) + 1):
        for units in combinations(names, number):
            yield every_unit(*units)


def _module_names(policy: RecomputePolicy, context: ExportContext) -> Iterator[str]:
    """Names of all modules that are recomputed, each on its own."""
    for blocks, cells in zip(context.block_lists, layout_of(policy, context.block_lists), strict=True):
        paths = dict(blocks.units)
        for index, (action, _, _) in enumerate(cells):
            if action == BLOCK:
                yield f"{blocks.path}.{index}"
            elif action != NONE:
                yield from (f"{blocks.path}.{index}.{paths[unit]}" for unit in action.split("+"))


def _quoted(names: list[str]) -> str:
    """Lines of a tuple; JSON writes text as Python reads it, whatever is in it."""
    return "".join(f"    {json.dumps(name)},\n" for name in names)


_PLAIN = '''
TRAINER_ARGUMENTS = {{"accumulate_grad_batches": {a}}}


def trainer_arguments(model):
    """Arguments for lightning.pytorch.Trainer; nothing is recomputed."""
    return dict(TRAINER_ARGUMENTS)
'''

_CALLBACK = '''
from tuner.integrations.lightning import RecomputeCallback

TRAINER_ARGUMENTS = {{"accumulate_grad_batches": {a}}}


def trainer_arguments(model):
    """Arguments for lightning.pytorch.Trainer; the callback recomputes as policy.yaml says."""
    return {{**TRAINER_ARGUMENTS, "callbacks": [RecomputeCallback("policy.yaml")]}}
'''

_BY_CLASS = '''
from lightning.pytorch.strategies import FSDPStrategy

TRAINER_ARGUMENTS = {{"accumulate_grad_batches": {a}}}

#: What was recomputed when the trial was measured, by the names that the modules have in the model.
RECOMPUTED = (
{names})


def recomputed_classes(model):
    """Classes of these modules, for FSDPStrategy(activation_checkpointing_policy=...).

    Raises ValueError where other modules are of these classes, which the strategy would recompute as well.
    """
    modules = [model.get_submodule(name) for name in RECOMPUTED]
    classes = {{type(module) for module in modules}}
    wanted = {{id(module) for module in modules}}
    others = [name for name, m in model.named_modules() if isinstance(m, tuple(classes)) and id(m) not in wanted]
    if others:
        raise ValueError(f"{{others[0]}} is of a class that is recomputed elsewhere; export with --python")
    return classes


def trainer_arguments(model):
    """Arguments for lightning.pytorch.Trainer, for the module whose blocks were tuned."""
    strategy = FSDPStrategy(activation_checkpointing_policy=recomputed_classes(model))
    return {{**TRAINER_ARGUMENTS, "strategy": strategy}}
'''
