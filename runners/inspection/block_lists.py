"""Finds the lists of alike blocks that a model runs one after another. Knows nothing of policies."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from runners.inspection.block_units import ATTENTION, unit_candidates
from runners.inspection.call_trace import Call, CallTrace, Target, tensors_in
from runners.regions.empty_cache import is_cache

#: Inner structure that alike blocks share at least: a ResNet's first block, which alone has a downsampling branch, does
#: so with the others; attention and MLP inside the same residual wrapper do not.
_MIN_SHARED_STRUCTURE = 0.3
#: A list whose parameters and activations are both a smaller part of the largest list's is not worth a choice.
_MIN_COST_RATIO = 0.02
#: A list of a single block has to be a good part of it, or it is a head or an adapter.
_MIN_COST_RATIO_OF_ONE = 0.2
#: A block is a stage, whose inner list is what counts, if that list holds this much of its parameters.
_MIN_STAGE_RATIO = 0.6
_EMBEDDING = re.compile("embed", re.IGNORECASE)


@dataclass(frozen=True)
class Container:
    """A list of modules inside a model.

    Attributes:
        keys: Name of each block below the path; positions for all containers but dicts.
    """

    path: str
    keys: tuple[str, ...]
    blocks: tuple[nn.Module, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.path}.{key}" for key in self.keys)

    @property
    def targets(self) -> list[Target]:
        return [(block, "forward") for block in self.blocks]

    def overlaps(self, other: Container) -> bool:
        """True where a block of one list is a block of the other, or lies inside one; smaller parts may be shared."""
        return bool(self._block_ids() & other._part_ids() or other._block_ids() & self._part_ids())

    def _block_ids(self) -> set[int]:
        return {id(block) for block in self.blocks}

    def _part_ids(self) -> set[int]:
        return {id(part) for block in self.blocks for part in block.modules()}


def containers_of(model: nn.Module) -> list[Container]:
    """Every list, sequence or dict of modules below the model that holds anything."""
    return [
        container_at(module, path)
        for path, module in model.named_modules()
        if path and is_container(module) and any(child is not None for child in module._modules.values())
    ]


def is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)


def may_be_named(module: nn.Module) -> bool:
    """True for containers, and for a module of the user's own that holds nothing but possible blocks."""
    children = list(module.children())
    return is_container(module) or (bool(children) and all(map(_can_be_block, children)))


def container_at(module: nn.Module, path: str) -> Container:
    children = {key: child for key, child in module._modules.items() if child is not None}
    return Container(path, tuple(children), tuple(children.values()))


def candidate_lists(model: nn.Module) -> list[Container]:
    """Containers whose members are mostly alike and look like blocks; whether they run as such, a trace has to show."""
    return [container for container in containers_of(model) if _looks_like_blocks(container)]


class ListUse:
    """What one forward pass did with the blocks of a container."""

    def __init__(self, container: Container, trace: CallTrace) -> None:
        calls = trace.calls_of(container.targets)
        self.num_calls = len(calls)
        #: Place of the first call in the forward pass; lists that are never called come last.
        self.order = trace.calls.index(calls[0]) if calls else len(trace.calls)
        self.gets_cache = any(is_cache(given) for call in calls for given in (*call.args, *call.kwargs.values()))
        pairs = list(itertools.pairwise(calls))
        self.is_linked = _mostly(_hands_over(a, b) for a, b in pairs)
        self.is_parallel = bool(pairs) and _mostly(_same_input(a, b) for a, b in pairs)
        self.gets_gradient = any(tensor.requires_grad for call in calls for tensor in tensors_in(call.output))
        #: Modules that return the last block's output as it is: a stage does, a block that adds a residual does not.
        self.returned_by = {
            id(around.owner)
            for last in calls[-1:]
            for around in last.around()
            if around.output_marks & last.output_marks
        }
        outermost = [call for call in calls if not call.is_within(calls)]
        self.output_bytes = sum(call.output_bytes for call in outermost)
        #: Its members are called, one after another rather than side by side, and have something to recompute.
        self.runs_as_blocks = self.num_calls > 0 and not self.is_parallel and self.gets_gradient


def choose_block_lists(
    model: nn.Module, candidates: Sequence[Container], uses: Mapping[str, ListUse]
) -> list[Container]:
    """The outermost lists that run as blocks, disjoint, in the order of the forward pass.

    Args:
        uses: What a forward pass did with each candidate, by its path.
    """
    chosen = list(_choose(_outermost(candidates), candidates, uses, _Cost(model, candidates, uses)))
    chosen.sort(key=lambda container: uses[container.path].order)
    disjoint: list[Container] = []
    for container in chosen:
        if not any(container.overlaps(other) for other in disjoint):
            disjoint.append(container)
    return disjoint


def _choose(
    level: Sequence[Container],
    candidates: Sequence[Container],
    uses: Mapping[str, ListUse],
    cost: _Cost,
) -> Iterator[Container]:
    for container in level:
        inner = [candidate for candidate in candidates if candidate.path.startswith(f"{container.path}.")]
        if not uses[container.path].runs_as_blocks or _holds_stages(container, inner, uses, cost):
            yield from _choose(_outermost(inner), inner, uses, cost)
        elif cost.is_worth_a_choice(container):
            yield container


def _outermost(candidates: Sequence[Container]) -> list[Container]:
    return [
        candidate
        for candidate in candidates
        if not any(candidate.path.startswith(f"{other.path}.") for other in candidates)
    ]


def _holds_stages(container: Container, inner: Sequence[Container], uses: Mapping[str, ListUse], cost: _Cost) -> bool:
    """True where most members are stages: little besides one chain of alike blocks.

    A residual block whose inner layers are a chain is none: it adds to what its chain returns, and those layers have no
    attention.
    """

    def is_stage(name: str, block: nn.Module) -> bool:
        own = cost.num_parameters([block])
        lists = _outermost([each for each in inner if each.path == name or each.path.startswith(f"{name}.")])
        chains = [each for each in lists if uses[each.path].num_calls and uses[each.path].is_linked]
        chains = [each for each in chains if _are_blocks_of_a_stage(each.blocks)]
        return own > 0 and any(
            cost.num_parameters(each.blocks) >= _MIN_STAGE_RATIO * own
            and (id(block) in uses[each.path].returned_by or ATTENTION in unit_candidates(each.blocks))
            for each in chains
        )

    return _mostly(is_stage(name, block) for name, block in zip(container.names, container.blocks, strict=True))


def _are_blocks_of_a_stage(blocks: Sequence[nn.Module]) -> bool:
    """True where all are alike inside; plain sequences of layers are the layers of one block (EfficientNet)."""
    is_alike = _num_alike(blocks, _share_structure) == len(blocks)
    return is_alike and not any(isinstance(block, nn.Sequential) for block in blocks)


class _Cost:
    """Parameters and activations of lists, against the largest list; embeddings are left out: they cost none."""

    def __init__(self, model: nn.Module, candidates: Sequence[Container], uses: Mapping[str, ListUse]) -> None:
        tables = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
        self._excluded = {id(table.weight) for table in tables}
        self._uses = uses
        running = [candidate for candidate in candidates if uses[candidate.path].runs_as_blocks]
        self._most_parameters = max((self.num_parameters(each.blocks) for each in running), default=0)
        self._most_bytes = max((uses[each.path].output_bytes for each in running), default=0)

    def num_parameters(self, modules: Iterable[nn.Module]) -> int:
        sizes = {id(p): p.numel() for module in modules for p in module.parameters() if id(p) not in self._excluded}
        return sum(sizes.values())

    def is_worth_a_choice(self, container: Container) -> bool:
        ratio = _MIN_COST_RATIO if len(container.blocks) > 1 else _MIN_COST_RATIO_OF_ONE
        has_parameters = self.num_parameters(container.blocks) >= ratio * self._most_parameters
        return has_parameters or self._uses[container.path].output_bytes >= ratio * self._most_bytes


def _looks_like_blocks(container: Container) -> bool:
    if any(map(_EMBEDDING.search, container.path.split(".")[-2:])):
        return False
    with_parameters = [block for block in container.blocks if next(block.parameters(), None) is not None]
    num_alike = _num_alike([block for block in with_parameters if _can_be_block(block)], _are_alike)
    return num_alike >= min(2, len(with_parameters)) and 2 * num_alike >= len(with_parameters) > 0


def _num_alike(blocks: Sequence[nn.Module], are_alike: Callable[[nn.Module, nn.Module], bool]) -> int:
    """Size of the largest group of blocks that are like one of them."""
    return max((sum(are_alike(block, other) for other in blocks) for block in blocks), default=0)


def _can_be_block(module: nn.Module) -> bool:
    """Callable, and more than one of torch's own leaf layers, whose input is kept anyway."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict | torch.jit.ScriptModule):
        return False
    if isinstance(module, nn.Sequential):
        return len(module) > 1 or _can_be_block(next(iter(module)))
    is_leaf = next(module.children(), None) is None
    return not (is_leaf and type(module).__module__.startswith("torch.nn."))


def _are_alike(block: nn.Module, other: nn.Module) -> bool:
    """Of one class; a plain sequence, which may hold anything, has to hold much the same."""
    return type(block) is type(other) and (not isinstance(block, nn.Sequential) or _share_structure(block, other))


def _share_structure(block: nn.Module, other: nn.Module) -> bool:
    left, right = _structure(block), _structure(other)
    return not (left | right) or len(left & right) >= _MIN_SHARED_STRUCTURE * len(left | right)


def _structure(block: nn.Module) -> set[tuple[str, type]]:
    """Inner modules that hold parameters; those without, such as a dropout that is absent at rate 0, do not matter."""
    return {
        (name, type(module))
        for name, module in block.named_modules()
        if name and next(module.parameters(), None) is not None
    }


def _hands_over(call: Call, next_call: Call) -> bool:
    """True where some tensor that the first call returned is an argument of the next."""
    returned = {id(tensor) for tensor in tensors_in(call.output)}
    return any(id(tensor) in returned for tensor in tensors_in((next_call.args, next_call.kwargs)))


def _same_input(call: Call, next_call: Call) -> bool:
    return isinstance(call.given, torch.Tensor) and call.given is next_call.given


def _mostly(claims: Iterable[bool]) -> bool:
    held = list(claims)
    return 2 * sum(held) >= len(held)
