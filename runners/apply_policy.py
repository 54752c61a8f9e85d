"""RecomputePolicy -> activation checkpointing on a model, in place and reversible. Needs torch and nothing else.

A block or unit is recomputed by replacing its ``forward`` on the instance: no module is wrapped, so names, hooks, ties
and state_dict keys stay as they were. Only the non-reentrant variant is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch import nn

from runners.inner_regions import InnerCall, InnerReplacement, MakeRegion, inner_regions
from runners.recompute_region import RecomputedCall, RecomputeObserver, Region
from runners.segment import Segment, SegmentHead, SegmentMember
from runners.unit_path import resolve_unit
from search_spaces.policy import BLOCK, SEGMENT, BlockListPlacement, PolicyError, RecomputePolicy
from search_spaces.unit_span import is_spans

PlacedCall: TypeAlias = RecomputedCall | SegmentHead | SegmentMember | InnerCall

_MISSING = object()


class AppliedPolicy:
    """A policy that is in force on a model until `undo` is called."""

    def __init__(self) -> None:
        # By module and attribute: what is in force there, and what was before the policy.
        self._replaced: dict[tuple[int, str], tuple[Any, str, Any, object]] = {}

    def replace(self, owner: nn.Module, attribute: str, call: PlacedCall) -> None:
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
        self._replaced = {}


def apply_policy(
    model: nn.Module, policy: RecomputePolicy, *, observer: RecomputeObserver | None = None
) -> AppliedPolicy:
    """Places the policy's recompute regions on the model, in place.

    Call it before ``torch.compile``, DDP and ``fully_shard``; the blocks of one segment must then be sharded as one
    group, ``fully_shard([block, ...])``, since the first of them runs all. Parameters, buffers, modules, hooks, modes
    and state_dict keys are untouched; under ``no_grad`` nothing is recomputed.

    Args:
        observer: Told when a region rebuilds its activations; used for measuring.

    Raises:
        PolicyError: The model has no such list of blocks, or the list differs from the one the policy was made for.
            The model is unchanged then.
    """
    _refuse_second_policy(model)
    regions: dict[tuple[int, str], _Replacement] = {}
    for placement in policy.placement:
        for replacement in _replacements(model, placement, policy.preserve_rng_state, observer):
            _add_once(regions, replacement)
    make_region = partial(Region, preserve_rng_state=policy.preserve_rng_state, observer=observer)
    inner = [each for placement in policy.placement for each in _inner_replacements(model, placement, make_region)]
    applied = AppliedPolicy()
    for item in regions.values():
        applied.replace(item.owner, item.attribute, item.call)
    # Around the others: these look at what is in force when they come.
    for around in sorted(inner, key=lambda each: each.order):
        applied.replace(around.module, "forward", around.wrap(around.module.forward))
    return applied


@dataclass(frozen=True)
class _Replacement:
    """One callable attribute of a module and what takes its place."""

    owner: nn.Module
    attribute: str
    call: RecomputedCall | SegmentHead | SegmentMember
    name: str


def _refuse_second_policy(model: nn.Module) -> None:
    """Also where the two would meet at no module: recompute inside recompute is never what two policies mean."""
    for name, module in model.named_modules():
        if any(isinstance(value, PlacedCall) for value in vars(module).values()):
            raise PolicyError(f"{name} is already recomputed by a policy applied before; undo that one first")


def _add_once(regions: dict[tuple[int, str], _Replacement], item: _Replacement) -> None:
    key = (id(item.owner), item.attribute)
    known = regions.get(key)
    if known is not None and not (isinstance(known.call, RecomputedCall) and isinstance(item.call, RecomputedCall)):
        raise PolicyError(f"{known.name} and {item.name} are one module; a segment cannot hold it twice")
    regions.setdefault(key, item)


def _replacements(
    model: nn.Module, placement: BlockListPlacement, preserve_rng_state: bool, observer: RecomputeObserver | None
) -> Iterator[_Replacement]:
    blocks = _block_list(model, placement)
    _refuse_divided_aliases(placement, blocks)
    units = placement.unit_paths
    for region in placement.regions:
        if region.action == SEGMENT:
            for first, last in region.segments():
                names = [f"{placement.blocks}.{index}" for index in range(first, last + 1)]
                yield from _segment(blocks[first : last + 1], names, preserve_rng_state, observer)
            continue
        for index in range(region.first, region.last + 1):
            block, name = blocks[index], f"{placement.blocks}.{index}"
            if region.action == BLOCK or region.keep:
                yield _recomputed(block, "", name, preserve_rng_state, observer, region.keep)
            for unit in region.unit_names():
                if not is_spans(units[unit]):
                    yield _recomputed(block, units[unit], name, preserve_rng_state, observer)


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


def _recomputed(
    block: nn.Module,
    path: str,
    block_name: str,
    preserve_rng_state: bool,
    observer: RecomputeObserver | None,
    keep: Sequence[str] = (),
) -> _Replacement:
    name = f"{block_name}.{path}" if path else block_name
    try:
        owner, attribute = resolve_unit(block, path) if path else (block, "forward")
    except AttributeError as error:
        raise PolicyError(f"placement names unit {name!r}, which the model does not have") from error
    region = Region(name, preserve_rng_state=preserve_rng_state, observer=observer, keep=keep)
    return _Replacement(owner, attribute, RecomputedCall(getattr(owner, attribute), region), name)


def _segment(
    blocks: Sequence[nn.Module], names: list[str], preserve_rng_state: bool, observer: RecomputeObserver | None
) -> Iterator[_Replacement]:
    if len(blocks) == 1:
        yield _recomputed(blocks[0], "", names[0], preserve_rng_state, observer)
        return
    region = Region(f"{names[0]} to {names[-1]}", preserve_rng_state=preserve_rng_state, observer=observer)
    segment = Segment([block.forward for block in blocks], names, region)
    yield _Replacement(blocks[0], "forward", SegmentHead(segment.originals[0], segment), names[0])
    for position in range(1, len(blocks)):
        member = SegmentMember(segment.originals[position], segment, position)
        yield _Replacement(blocks[position], "forward", member, names[position])
