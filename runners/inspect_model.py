"""model -> ModelShape: its lists of blocks, their units, aliases and chains, found by running it a few times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from runners.base import WorkloadError
from runners.inspection.block_lists import (
    Container,
    candidate_lists,
    choose_block_lists,
    container_at,
    containers_of,
    may_be_named,
)
from runners.inspection.block_units import ATTENTION, MLP, has_unit, known_paths, unit_candidates
from runners.inspection.call_trace import traced_calls
from runners.inspection.keep_sets import find_keep_sets
from runners.inspection.named_operators import idle_actions
from runners.inspection.own_recompute import is_switched_on, watch_for_recompute
from runners.inspection.watched_list import WatchedList
from runners.workloads.nearest import known_names
from search_spaces.actions import asks_for_keep_sets
from search_spaces.model_shape import ModelShape
from search_spaces.unit_span import is_spans

#: Forward passes of a model in training, so that blocks skipped at random are seen, and are seen to be skipped.
_NUM_PASSES = 3
#: Containers that a note lists at most.
_MAX_LISTED = 12


@dataclass(frozen=True)
class InspectedModel:
    """What a model is made of, and whether it recomputes by itself already."""

    shape: ModelShape
    has_own_recompute: bool


def inspect_model(
    model: nn.Module,
    *,
    run_step: Callable[[], object],
    blocks: Sequence[str] | None = None,
    units: Mapping[str, str] | None = None,
    inner_units: Sequence[str] = (),
    keep_sets: Sequence[str] = (),
) -> InspectedModel:
    """Finds what can be recomputed, or checks what the user named.

    The model is run a few times in the modes it is in, so its buffers and the random generators advance: build a new
    one afterwards.

    Args:
        run_step: Runs one forward pass of the model on a small batch, with gradients enabled.
        blocks: Paths of block lists; None finds them.
        units: Unit name to path below the block; None finds them.
        inner_units: Names of the units to be found that begin or end inside a module, as `inspection.inner_units` has
            them.
        keep_sets: Selective actions: keep-sets are found for those that ask for some, and operators that others name
            are looked for.

    Raises:
        WorkloadError: A path or an operator that the user named does not exist or cannot be used.
    """
    containers = candidate_lists(model) if blocks is None else _named_lists(model, blocks)
    if units is not None:
        _refuse_unknown_units(containers, units)
    watched = {
        container.path: WatchedList(container, _unit_paths(container, units), inner_units) for container in containers
    }
    has_own_recompute = _watch_passes(model, run_step, list(watched.values())) or is_switched_on(model)
    uses = {path: each.use for path, each in watched.items()}
    if blocks is None:
        containers = choose_block_lists(model, containers, uses)
    containers = sorted(containers, key=lambda container: uses[container.path].order)
    lists = [watched[container.path] for container in containers]
    notes = [*_model_notes(model, lists, has_own_recompute), *_missing_list_notes(model, lists)]
    notes += [note for each in lists for note in _list_notes(each)]
    notes += _missing_unit_notes(lists, (ATTENTION, MLP) if units is None else tuple(units))
    idle = idle_actions(keep_sets, [each.container.blocks for each in lists], run_step)
    found_for = tuple(filter(asks_for_keep_sets, keep_sets))
    shape = ModelShape(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        block_lists=tuple(
            replace(
                each.block_list(),
                keep_sets=find_keep_sets(each.container.blocks, run_step, found_for),
                idle_keeps=idle_here,
            )
            for each, idle_here in zip(lists, idle, strict=True)
        ),
        notes=tuple(notes),
    )
    return InspectedModel(shape, has_own_recompute)


def _named_lists(model: nn.Module, paths: Sequence[str]) -> list[Container]:
    """The containers that placement.blocks names, checked."""
    known = [container.path for container in containers_of(model)]
    named: list[Container] = []
    for path in paths:
        try:
            module = model.get_submodule(path)
        except AttributeError as error:
            raise WorkloadError(
                f"placement.blocks names {path}, which {type(model).__name__} does not have; {known_names(path, known)}"
            ) from error
        if not path or not may_be_named(module):
            raise WorkloadError(
                f"placement.blocks names {path or 'the model itself'}, which is a {type(module).__name__} and no "
                f"list of blocks (a ModuleList, Sequential or ModuleDict); {known_names(path, known)}"
            )
        container = container_at(module, path)
        if not container.blocks:
            raise WorkloadError(f"placement.blocks names {path}, which is empty; {known_names(path, known)}")
        _refuse_overlap(container, named)
        named.append(container)
    return named


def _refuse_overlap(container: Container, others: Sequence[Container]) -> None:
    for other in others:
        if container.overlaps(other):
            raise WorkloadError(
                f"placement.blocks names {other.path} and {container.path}, which share blocks; "
                "name each block in one list only"
            )


def _unit_paths(container: Container, units: Mapping[str, str] | None) -> dict[str, list[str]]:
    if units is None:
        return unit_candidates(container.blocks)
    return {name: [path] for name, path in units.items() if all(has_unit(block, path) for block in container.blocks)}


def _refuse_unknown_units(containers: Sequence[Container], units: Mapping[str, str]) -> None:
    """Refuses units that no list has in all of its blocks."""
    for name, path in units.items():
        lacking = [
            next((i for i, block in enumerate(container.blocks) if not has_unit(block, path)), None)
            for container in containers
        ]
        if containers and all(index is not None for index in lacking):
            container, index = containers[0], lacking[0]
            assert index is not None
            raise WorkloadError(
                f"placement.units names {path} as {name}, which {container.names[index]} "
                f"({type(container.blocks[index]).__name__}) does not have; "
                f"{known_names(path, known_paths(container.blocks[index]))}"
            )
    plain = {name: path for name, path in units.items() if not is_spans(path)}
    for name, path in plain.items():
        for other, other_path in plain.items():
            if other_path.startswith(f"{path}.") or (path == other_path and name < other):
                raise WorkloadError(
                    f"placement.units names {path} as {name} and {other_path} as {other}; one lies in the other, "
                    "and units have to be apart"
                )


def _watch_passes(model: nn.Module, run_step: Callable[[], object], watched: Sequence[WatchedList]) -> bool:
    """Runs the model and lets each list see it; gives back whether the model recomputes by itself."""
    targets = [target for each in watched for target in each.targets]
    is_training = any(module.training for module in model.modules())
    has_own_recompute = False
    for index in range(_NUM_PASSES if is_training else 1):
        with traced_calls(targets) as trace:
            if index == 0:
                with watch_for_recompute() as watch:
                    run_step()
                has_own_recompute = watch.found
            else:
                run_step()
        for each in watched:
            each.observe(trace)
        del trace  # It holds the activations of a whole pass.
    return has_own_recompute


def _model_notes(model: nn.Module, lists: Sequence[WatchedList], has_own_recompute: bool) -> Iterator[str]:
    if has_own_recompute:
        yield (
            "The model recomputes activations by itself. That stays as it is, so the baseline is the model as given, "
            "not one without recompute."
        )
    if not any(module.training for module in model.modules()):
        yield (
            "The model is in eval mode as built, so dropout is off. If it is to be trained otherwise, call train() in "
            "the factory."
        )
    if any(each.use.gets_cache for each in lists):
        yield (
            "The model hands its blocks a cache, in which they store keys and values for generation even while they "
            "train. What is recomputed runs without it; elsewhere it takes memory for nothing. Build the model from a "
            "config with use_cache: false, in the factory and in training; nothing that is trained depends on it."
        )


def _missing_list_notes(model: nn.Module, lists: Sequence[WatchedList]) -> Iterator[str]:
    if lists:
        return
    containers = containers_of(model)
    uncallable = [c.path for c in containers if all(isinstance(b, nn.ModuleList | nn.ModuleDict) for b in c.blocks)]
    if uncallable:
        yield (
            f"{uncallable[0]} holds lists of parts, which are never called themselves, so none of them can be a block; "
            "put the parts of each block into a module with a forward of its own."
        )
        return
    known = ", ".join(container.path for container in containers[:_MAX_LISTED])
    yield (
        "No list of alike blocks that run one after another was found, so nothing can be recomputed. If there is one, "
        "name it in search.yaml: placement.blocks: [PATH]. "
        + (f"Containers in the model: {known}." if known else "The model has no ModuleList, Sequential or ModuleDict.")
    )


def _list_notes(watched: WatchedList) -> Iterator[str]:
    container, found = watched.container, watched.block_list()
    for group in found.aliases:
        yield (f"{container.path}: positions {', '.join(map(str, group))} hold one module; they are given one choice.")
    if watched.use.num_calls == 0:
        yield f"{container.path}: its blocks were not called, so recompute there changes nothing."
    elif not watched.use.gets_gradient:
        yield f"{container.path}: no gradient flows through its blocks, so recompute there changes nothing."
    elif watched.use.num_calls > len(container.blocks):
        yield (
            f"{container.path}: {watched.use.num_calls} calls of {len(container.blocks)} block(s) in one forward pass; "
            "a choice holds for every call of a block."
        )
    for name, reason in watched.left_out_units():
        yield f"{container.path}: unit {name} is left out: {reason}."
    for name, gap in watched.gaps():
        yield f"{container.path}: unit {name} is not of every part: {gap}."


def _missing_unit_notes(lists: Sequence[WatchedList], expected: Sequence[str]) -> Iterator[str]:
    """One sentence for all lists of the same blocks that lack the same units."""
    groups: dict[tuple[str, tuple[str, ...]], list[WatchedList]] = {}
    for each in lists:
        missing = tuple(name for name in expected if name not in each.watched_units)
        if missing:
            groups.setdefault((each.block_list().kind, missing), []).append(each)
    for (_, missing), same in groups.items():
        block = same[0].container.blocks[0]
        parts = ", ".join(name for name, _ in block.named_children()) or "no modules"
        yield (
            f"{', '.join(each.container.path for each in same)}: not every block has a unit {' and '.join(missing)} "
            f"({type(block).__name__}: {parts}). If there is one, name it in search.yaml: "
            f"placement.units: {{{missing[0]}: PATH}}."
        )
