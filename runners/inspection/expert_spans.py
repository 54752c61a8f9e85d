"""Units within the experts of a mixture: each pass calls those that its tokens are sent to, and all are meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from runners.regions.inner import has_module
from search_spaces.unit_span import UnitSpan

_Spans = tuple[UnitSpan, ...]
#: A span, or a list of experts and where the span begins and ends in each of them.
_Pattern = tuple[str, UnitSpan]


def of_all_experts(blocks: Sequence[nn.Module], found: Iterable[_Spans]) -> _Spans | None:
    """The spans for every expert, from those of the experts that some passes called.

    Args:
        found: Of each block and pass.

    Returns:
        None where no expert is among them, or passes and blocks differ in more than which experts were called.
    """
    patterns = {frozenset(_pattern(blocks[0], span) for span in spans) for spans in found}
    if len(patterns) != 1:
        return None
    (pattern,) = patterns
    if not any(experts for experts, _ in pattern):
        return None
    spans = tuple(span for each in sorted(pattern, key=str) for span in _expanded(blocks[0], each))
    has_all = all(has_module(block, path) for block in blocks for span in spans for path in span.paths)
    return spans if has_all else None


def stacked_experts(block: nn.Module) -> str | None:
    """Path of a module that holds experts as slices of its own parameters; None where there is none."""
    path: str
    for path, module in block.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim == 3]
        if len(own) > 1 and "expert" in f"{path} {type(module).__name__}".lower():
            return path
    return None


def _pattern(block: nn.Module, span: UnitSpan) -> _Pattern:
    for path, module in block.named_modules():
        inside = [each.removeprefix(f"{path}.") for each in span.paths if each.startswith(f"{path}.")]
        if not path or not isinstance(module, nn.ModuleList) or len(inside) != len(span.paths) or not span.head:
            continue
        names = [each.partition(".") for each in inside]
        if len({index for index, _, _ in names}) == 1:
            return path, UnitSpan(names[0][2], tuple(rest for _, _, rest in names[1:]))
    return "", span


def _expanded(block: nn.Module, pattern: _Pattern) -> Iterable[UnitSpan]:
    experts, span = pattern
    if not experts:
        return [span]
    names = [f"{experts}.{name}" for name, _ in block.get_submodule(experts).named_children()]
    return [UnitSpan(_joined(name, span.head), tuple(_joined(name, tail) for tail in span.tails)) for name in names]


def _joined(path: str, below: str) -> str:
    return f"{path}.{below}" if below else path
