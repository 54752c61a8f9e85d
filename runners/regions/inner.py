"""A unit that is spans -> the calls that make it recompute, for one block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from runners.regions.cut import CutCall, CutRegion, KeptCall, TailCall
from runners.regions.rebuilt_input import HeadCall, InputTailCall
from runners.regions.region import Region
from search_spaces.policy import PolicyError
from search_spaces.unit_span import UnitSpan, parse_spans

#: Makes a region of that name, for the code of those modules.
MakeRegion: TypeAlias = Callable[..., Region]
InnerCall: TypeAlias = CutCall | KeptCall | TailCall | HeadCall | InputTailCall


@dataclass(frozen=True)
class InnerReplacement:
    """What goes around the forward of a module that is in force already, be that the module's own or a region's.

    Attributes:
        wrap: From the forward in force to what takes its place.
        order: Those of one module go around one another in this order, the lowest innermost.
    """

    module: nn.Module
    wrap: Callable[[Callable[..., Any]], InnerCall]
    order: int


def inner_regions(block: nn.Module, path: str, block_name: str, make_region: MakeRegion) -> Iterator[InnerReplacement]:
    """What to replace in a block for a unit with this path.

    Raises:
        PolicyError: The path is no span, or the block has no such module.
    """
    try:
        spans = parse_spans(path)
    except ValueError as error:
        raise PolicyError(f"placement names a unit of {block_name}: {error}") from error
    for span in spans:
        for part in span.paths:
            if not has_module(block, part):
                raise PolicyError(f"placement names unit '{block_name}.{part}', which the model does not have")
        region = make_region(f"{block_name}.{span}", [block])
        yield from _cut(block, span, region) if span.holds_tail else _rebuilt_input(block, span, region, make_region)


def has_module(block: nn.Module, path: str) -> bool:
    try:
        block.get_submodule(path)
    except AttributeError:
        return False
    return True


def has_matrices(module: nn.Module) -> bool:
    """Whether calling it multiplies matrices, so that it is not cheap to call twice."""
    return any(parameter.ndim > 1 for parameter in module.parameters())


def _cut(block: nn.Module, span: UnitSpan, region: Region) -> Iterator[InnerReplacement]:
    head, tail = block.get_submodule(span.head), block.get_submodule(span.tails[0])
    cut = CutRegion(region)
    yield InnerReplacement(head, partial(CutCall, cut=cut), 2)
    for name, module in _kept_modules(head, tail):
        may_be_random = next(module.children(), None) is not None
        yield InnerReplacement(module, partial(KeptCall, cut=cut, name=name, may_be_random=may_be_random), 1)
    yield InnerReplacement(tail, partial(TailCall, cut=cut), 1)


def _kept_modules(head: nn.Module, tail: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules within the head that hold matrices and neither are nor hold the tail.

    Of a module that is one projection and what is cheap around it, such as an activation, the projection alone.
    """
    for name, module in head.named_children():
        path = f"{prefix}{name}"
        if module is tail or not has_matrices(module):
            continue
        holds_tail = any(part is tail for part in module.modules())
        if holds_tail or isinstance(module, nn.ModuleList | nn.ModuleDict) or _surrounds_one_projection(module):
            yield from _kept_modules(module, tail, f"{path}.")
        else:
            yield path, module


def _surrounds_one_projection(module: nn.Module) -> bool:
    """Whether all matrices of the module belong to a single module within it."""
    holders = [part for part in module.modules() if any(of.ndim > 1 for of in part.parameters(recurse=False))]
    return len(holders) == 1 and holders[0] is not module and not is_parametrized(module)


def _rebuilt_input(
    block: nn.Module, span: UnitSpan, region: Region, make_region: MakeRegion
) -> Iterator[InnerReplacement]:
    head = block.get_submodule(span.head)
    keeps_inner = type(head).__module__.startswith("torch.nn.modules.")
    yield InnerReplacement(head, partial(HeadCall, region=region, keeps_inner=keeps_inner), 0)
    for path in span.tails:
        tail = block.get_submodule(path)
        of_tail = region
        if type(tail) is nn.Linear:  # A plain projection draws no random numbers, so there is no state to keep for it.
            of_tail = make_region(region.name, region.modules, preserve_rng_state=False)
        yield InnerReplacement(tail, partial(InputTailCall, region=of_tail), 0)
