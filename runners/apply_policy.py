"""RecomputePolicy -> activation checkpointing and compilation of a model, in place and reversible. Needs torch only.

A block or unit is recomputed by replacing its ``forward`` on the instance: no module is wrapped, so names, hooks, ties
and state_dict keys stay as they were. Only the non-reentrant variant is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch import nn

from runners.inspection.unit_path import resolve_unit
from runners.regions.compiled import CompiledCall
from runners.regions.inner import InnerCall, InnerReplacement, MakeRegion, inner_regions
from runners.regions.offloaded import HostCopyObserver, OffloadedCall, OffloadLine
from runners.regions.region import RecomputedCall, RecomputeObserver, Region
from runners.regions.segment import Segment, SegmentHead, SegmentMember
from search_spaces.policy import (
    BLOCK,
    COMPILE_BLOCKS,
    COMPILE_MODEL,
    OFFLOAD,
    SEGMENT,
    BlockListPlacement,
    PolicyError,
    RecomputePolicy,
)
from search_spaces.unit_span import is_spans

PlacedCall: TypeAlias = RecomputedCall | SegmentHead | SegmentMember | InnerCall | CompiledCall | OffloadedCall

_MISSING = object()


class AppliedPolicy:
    """A policy that is in force on a model until `undo` is called."""

    def __init__(self) -> None:
        # By module and attribute: what is in force there, and what was before the policy.
        self._replaced: dict[tuple[int, str], tuple[Any, str, Any, object]] = {}
        self._is_in_force = True

    def replace(self, owner: nn.Module, attribute: str, call: Callable[..., Any]) -> None:
        """Puts a call in place, perhaps around one that was put there before."""
        key = (id(owner), attribute)
        previous = vars(owner).get(attribute, _MISSING) if key not in self._replaced else self._replaced[key][3]
        setattr(owner, attribute, call)
        self._replaced[key] = (owner, attribute, call, previous)

    def undo(self) -> None:
        """Puts back every forward that was replaced. May be called once more without effect.

        Raises:
            RuntimeError: Something else has replaced one of them since; nothing is undone then.
        """
        if not self._is_in_force:
            return
        for owner, attribute, replacement, _ in self._replaced.values():
            if vars(owner).get(attribute) is not replacement:
                raise RuntimeError(
                    f"{type(owner).__name__}.{attribute} was replaced again after the policy was applied; "
                    "undo that first, then the policy"
                )
        for owner, attribute, _, previous in reversed(self._replaced.values()):
            if previous is _MISSING:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, previous)
        self._is_in_force = False

    def redo(self) -> None:
        """Puts an undone policy in force again, with the same calls in place: what they compiled is still there.

        Raises:
            RuntimeError: It is in force, or something else has replaced a forward since it was undone.
        """
        for owner, attribute, _, previous in self._replaced.values():
            if vars(owner).get(attribute, _MISSING) is not previous:
                raise RuntimeError(
                    f"{type(owner).__name__}.{attribute} is replaced already; undo that first, then redo the policy"
                )
        for owner, attribute, replacement, _ in self._replaced.values():
            setattr(owner, attribute, replacement)
        self._is_in_force = True


def apply_policy(
    model: nn.Module,
    policy: RecomputePolicy,
    *,
    observer: RecomputeObserver | None = None,
    on_host_copy: HostCopyObserver | None = None,
) -> AppliedPolicy:
    """Places the policy's recompute regions on the model, in place, and compiles what the policy says is compiled.

    A block that is recomputed whole, and a segment, are regions around compiled blocks: the code of a block is the same
    whatever its policy. A unit is a region inside its compiled block, which the compiler rebuilds; so is every region
    of a model that is compiled whole.

    Call it before DDP and ``fully_shard``, and before a ``torch.compile`` of one's own; the blocks of one segment must
    then be sharded as one group, ``fully_shard([block, ...])``, since the first of them runs all. Parameters, buffers,
    modules, hooks, modes and state_dict keys are untouched; under ``no_grad`` nothing is recomputed.

    Args:
        observer: Told when a region rebuilds its activations; used for measuring.
        on_host_copy: Called with each copy that an offloaded block makes on the host; used for measuring.

    Raises:
        PolicyError: The model has no such list of blocks, or the list differs from the one the policy was made for.
            The model is unchanged then.
    """
    _refuse_second_policy(model)
    regions: dict[tuple[int, str], _Replacement] = {}
    line = OffloadLine(on_host_copy)
    for placement in policy.placement:
        for replacement in _replacements(model, placement, policy, observer, line):
            _add_once(regions, replacement)
    if policy.compile == COMPILE_MODEL:
        whole = CompiledCall(model.forward, policy.compile_memory_budget)
        _add_once(regions, _Replacement(model, "forward", whole, type(model).__name__))
    make_region = partial(Region, preserve_rng_state=policy.preserve_rng_state, observer=observer)
    inner = [each for placement in policy.placement for each in _inner_replacements(model, placement, make_region)]
    applied = AppliedPolicy()
    for item in regions.values():
        # The compiler guards on a replaced forward itself, and compiles a block anew for each. Of a bound method it
        # guards on the function alone, which all blocks share.
        applied.replace(item.owner, item.attribute, item.call.__call__ if item.is_within_compiled else item.call)
    # Around the others: these look at what is in force when they come.
    for around in sorted(inner, key=lambda each: each.order):
        applied.replace(around.module, "forward", around.wrap(around.module.forward))
    return applied


@dataclass(frozen=True)
class _Replacement:
    """One callable attribute of a module and what takes its place.

    Attributes:
        is_within_compiled: The call is compiled with the block that it is a part of.
    """

    owner: nn.Module
    attribute: str
    call: PlacedCall
    name: str
    is_within_compiled: bool = False


def _refuse_second_policy(model: nn.Module) -> None:
    """Also where the two would meet at no module: recompute inside recompute is never what two policies mean."""
    for name, module in model.named_modules():
        if any(isinstance(getattr(value, "__self__", value), PlacedCall) for value in vars(module).values()):
            where = name or type(model).__name__
            raise PolicyError(f"{where} is already recomputed or compiled by a policy; undo that one first")


def _add_once(regions: dict[tuple[int, str], _Replacement], item: _Replacement) -> None:
    key = (id(item.owner), item.attribute)
    known = regions.get(key)
    if known is not None and any(isinstance(each.call, SegmentHead | SegmentMember) for each in (known, item)):
        raise PolicyError(f"{known.name} and {item.name} are one module; a segment cannot hold it twice")
    regions.setdefault(key, item)


def _replacements(
    model: nn.Module,
    placement: BlockListPlacement,
    policy: RecomputePolicy,
    observer: RecomputeObserver | None,
    line: OffloadLine,
) -> Iterator[_Replacement]:
    blocks = _block_list(model, placement)
    _refuse_divided_aliases(placement, blocks)
    units = placement.unit_paths
    make_region = partial(Region, preserve_rng_state=policy.preserve_rng_state, observer=observer)
    is_compiled = policy.compile == COMPILE_BLOCKS
    budget = policy.compile_memory_budget
    forwards = [CompiledCall(block.forward, budget) if is_compiled else block.forward for block in blocks]
    for region in placement.regions:
        if region.action == SEGMENT:
            for first, last in region.segments():
                names = [f"{placement.blocks}.{index}" for index in range(first, last + 1)]
                yield from _segment(blocks[first : last + 1], forwards[first : last + 1], names, make_region)
            continue
        for index in range(region.first, region.last + 1):
            block, name = blocks[index], f"{placement.blocks}.{index}"
            if region.action == OFFLOAD:
                yield _Replacement(block, "forward", OffloadedCall(block.forward, model, line, name), name)
            if region.action == BLOCK or region.keep:
                call = RecomputedCall(forwards[index], make_region(name, [block], keep=region.keep))
                yield _Replacement(block, "forward", call, name)
            for unit in region.unit_names():
                if not is_spans(units[unit]):
                    yield _unit(block, units[unit], name, make_region, is_within_compiled=is_compiled)
    for block, forward, action in zip(blocks, forwards, placement.actions(), strict=True):
        if isinstance(forward, CompiledCall) and action not in (BLOCK, SEGMENT):
            yield _Replacement(block, "forward", forward, placement.blocks)


def _inner_replacements(
    model: nn.Module, placement: BlockListPlacement, make_region: MakeRegion
) -> Iterator[InnerReplacement]:
    """Those of units that begin or end inside a module; a block that stands at several positions has them once."""
    blocks = _block_list(model, placement)
    seen: set[int] = set()
    for region in placement.regions:
        paths = [placement.unit_paths[unit] for unit in region.unit_names() if is_spans(placement.unit_paths[unit])]
        for index in range(region.first, region.last + 1) if paths else ():
            if id(blocks[index]) not in seen:
                seen.add(id(blocks[index]))
                for path in paths:
                    yield from inner_regions(blocks[index], path, f"{placement.blocks}.{index}", make_region)


def _block_list(model: nn.Module, placement: BlockListPlacement) -> list[nn.Module]:
    try:
        container = model.get_submodule(placement.blocks)
    except AttributeError as error:
        raise PolicyError(
            f"placement names blocks {placement.blocks!r}, which {type(model).__name__} does not have; "
            "apply the policy to the model it was made for, before anything wraps it"
        ) from error
    # The containers' own children() skips a module that stands at two positions; the values do not.
    blocks = [block for block in container._modules.values() if block is not None]
    if len(blocks) != placement.num_blocks:
        raise PolicyError(
            f"placement of {placement.blocks} is for {placement.num_blocks} blocks, but the model has {len(blocks)}; "
            "tune this model anew"
        )
    return blocks


def _refuse_divided_aliases(placement: BlockListPlacement, blocks: Sequence[nn.Module]) -> None:
    first_position: dict[int, int] = {}
    actions = placement.actions()
    for index, block in enumerate(blocks):
        first = first_position.setdefault(id(block), index)
        if actions[first] != actions[index]:
            raise PolicyError(
                f"{placement.blocks}: positions {first} and {index} hold one module, but the policy gives them "
                f"{actions[first]} and {actions[index]}; one module takes one action"
            )


def _unit(
    block: nn.Module, path: str, block_name: str, make_region: MakeRegion, *, is_within_compiled: bool
) -> _Replacement:
    name = f"{block_name}.{path}"
    try:
        owner, attribute = resolve_unit(block, path)
    except AttributeError as error:
        raise PolicyError(f"placement names unit {name!r}, which the model does not have") from error
    call = RecomputedCall(getattr(owner, attribute), make_region(name, [owner]))
    return _Replacement(owner, attribute, call, name, is_within_compiled)


def _segment(
    blocks: Sequence[nn.Module], forwards: list[Callable[..., Any]], names: list[str], make_region: MakeRegion
) -> Iterator[_Replacement]:
    if len(blocks) == 1:
        yield _Replacement(blocks[0], "forward", RecomputedCall(forwards[0], make_region(names[0], blocks)), names[0])
        return
    segment = Segment(forwards, names, make_region(f"{names[0]} to {names[-1]}", blocks))
    yield _Replacement(blocks[0], "forward", SegmentHead(segment.originals[0], segment), names[0])
    for position in range(1, len(blocks)):
        member = SegmentMember(segment.originals[position], segment, position)
        yield _Replacement(blocks[position], "forward", member, names[position])
