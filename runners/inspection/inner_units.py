"""Finds units that begin or end inside a module: what an activation costs before its projection, norms before theirs.

A module's name tells neither where its activation's output goes nor who takes a norm's output in. A traced pass does:
by the tensors that calls hand on, and by the graph between one projection's output and the next one's input.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from runners.inspection.call_trace import Call, CallTrace, Target, tensors_in
from runners.inspection.expert_spans import of_all_experts, stacked_experts
from runners.regions.inner import has_matrices, has_module
from search_spaces.unit_span import UnitSpan, parse_spans, spans_path

ACTIVATION, NORM = "activation", "norm"
INNER_UNITS = (ACTIVATION, NORM)

_ACTIVATION_NODE = re.compile(r"elu|silu|swish|tanh|sigmoid|mish|softplus|glu", re.IGNORECASE)
_PRODUCT_NODE = re.compile(r"mm|linear|conv|attention|softmax", re.IGNORECASE)
_NORM_CLASS = re.compile(r"norm", re.IGNORECASE)
_WHY_NOT_FOUND = {
    ACTIVATION: "no module takes in what an activation function makes of another one's output, each called once",
    NORM: "no projection takes in the output of a norm, each called once",
}
_STACKED = (
    "the experts are slices of the parameters of {}, so no module ends where a region could begin; "
    "selective:matmuls keeps their products and rebuilds the activation"
)
#: Nodes of the graph between two projections above which they are not neighbours.
_MOST_NODES = 40
_WITH_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class InnerUnits:
    """The units of one list of blocks that begin or end inside a module.

    Args:
        named: Unit name -> path, as the user wrote it.
        wanted: Names of those to be found, out of `INNER_UNITS`.
    """

    def __init__(self, blocks: Sequence[nn.Module], named: dict[str, str], wanted: Iterable[str]) -> None:
        self._blocks = list({id(block): block for block in blocks}.values())
        self._paths = {id(block): {id(part): name for name, part in block.named_modules()} for block in self._blocks}
        self._named = {name: parse_spans(path) for name, path in named.items()}
        self._wanted = tuple(name for name in wanted if name not in named)
        self._found: dict[str, set[tuple[UnitSpan, ...]]] = {name: set() for name in (*self._named, *self._wanted)}
        #: Calls that each unit's ends ran within, itself included.
        self._around: dict[str, set[tuple[int, str]]] = {name: set() for name in self._found}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._found)

    @property
    def targets(self) -> list[Target]:
        """What a trace has to watch; nothing where no unit is looked for."""
        parts = [part for block in self._blocks for part in block.modules() if part is not block] if self._found else []
        return [(part, "forward") for part in parts if has_matrices(part) or _is_norm(part)]

    def observe(self, trace: CallTrace) -> None:
        """Adds one forward pass."""
        if not self._found:
            return
        outputs = _OutputNodes(trace)
        for block in self._blocks:
            for call in trace.calls_of([(block, "forward")]):
                inner = _BlockCall(call, trace, self._paths[id(block)], outputs)
                for name in self._found:
                    self._observe(name, inner)

    def paths(self) -> dict[str, str]:
        """Unit name -> path, of those that every block has alike."""
        return {name: spans_path(self._spans(name)) for name in self._found if not self.problem(name)}

    def problem(self, name: str) -> str | None:
        """Why there is no such unit, as the end of a sentence; None where there is one."""
        found = self._found[name]
        if name in self._named:
            missing = [span for span in self._named[name] if not found or any(span not in spans for spans in found)]
            return (
                f"{missing[0]} is not run once, head around or right before tails, by each block" if missing else None
            )
        if not found or found == {()}:
            return self._experts_beyond(name, ()) or _WHY_NOT_FOUND[name]
        return None if self._spans(name) else "it would begin or end elsewhere in each block"

    def gap(self, name: str) -> str | None:
        """What a unit that was found does not reach, as the end of a sentence; None where there is no such thing."""
        return self._experts_beyond(name, self._spans(name)) if name in self._wanted else None

    def _experts_beyond(self, name: str, spans: Iterable[UnitSpan]) -> str | None:
        experts = stacked_experts(self._blocks[0]) if name == ACTIVATION else None
        if experts is None or any(_is_within(experts, span.head) for span in spans):
            return None
        return _STACKED.format(experts)

    def _spans(self, name: str) -> tuple[UnitSpan, ...]:
        """Those of every block alike; empty where blocks differ."""
        found = self._found[name]
        spans = of_all_experts(self._blocks, found) if name in self._wanted else None
        return spans or (next(iter(found)) if len(found) == 1 else ())

    def shares_with(self, name: str, keys: set[tuple[int, str]]) -> bool:
        """Whether the unit begins or ends within one of these calls."""
        return bool(self._around[name] & keys)

    def _observe(self, name: str, inner: _BlockCall) -> None:
        if name in self._named:
            spans = tuple(span for span in self._named[name] if inner.runs(span))
        else:
            spans = tuple(inner.activations() if name == ACTIVATION else inner.norms())
        self._found[name].add(spans)
        self._around[name] |= {key for span in spans for key in inner.around(span)}


class _OutputNodes:
    """Which call of a projection made a node of the graph."""

    def __init__(self, trace: CallTrace) -> None:
        self._calls: dict[Any, Call] = {}
        for call in trace.calls:
            if _is_leaf(call.owner):
                for tensor in tensors_in(call.output):
                    if tensor.grad_fn is not None:
                        self._calls.setdefault(tensor.grad_fn, call)

    def feeding(self, tensor: torch.Tensor) -> list[Call] | None:
        """The calls whose outputs, by an activation and what else is cheap, became the tensor; None where none did."""
        waiting, seen, names, calls = [tensor.grad_fn], set(), [], []
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in self._calls:
                calls.append(self._calls[node])
                continue
            name = node.name()
            if len(seen) > _MOST_NODES or _PRODUCT_NODE.search(name):
                return None
            names.append(name)
            waiting += [inner for inner, _ in node.next_functions]
        return calls if calls and any(map(_ACTIVATION_NODE.search, names)) else None


class _BlockCall:
    """One call of a block, and those within it."""

    def __init__(self, call: Call, trace: CallTrace, paths: dict[int, str], outputs: _OutputNodes) -> None:
        self._call = call
        self._calls = [each for each in trace.calls if call in each.around() and id(each.owner) in paths]
        self._paths = paths
        self._outputs = outputs
        self._num_calls = Counter(map(self._path, self._calls))

    def activations(self) -> Iterator[UnitSpan]:
        """From each module's begin to the last projection in it that takes in what an activation made."""
        by_head: dict[str, UnitSpan] = {}
        for tail in self._calls:
            span = self._activation_before(tail)
            if span is not None:
                by_head[span.head] = span
        for span in by_head.values():
            if not any(_is_within(span.head, other) for other in by_head if other != span.head):
                yield span

    def norms(self) -> Iterator[UnitSpan]:
        for call in self._calls:
            if _is_norm(call.owner) and self._runs_once(call):
                tails = [each for each in self._calls if _is_leaf(each.owner) and self._is_handed(call, each)]
                if tails and all(map(self._runs_once, tails)):
                    yield UnitSpan(self._path(call), tuple(map(self._path, tails)))

    def runs(self, span: UnitSpan) -> bool:
        """Whether the span that the user named is one in this call."""
        calls = {self._path(call): call for call in self._calls}
        tails = [calls.get(path) for path in span.tails]
        head = self._call if not span.head else calls.get(span.head)
        if head is None or any(tail is None or not self._runs_once(tail) for tail in tails):
            return False
        if span.holds_tail:
            return all(tail is not None and head in tail.around() for tail in tails)
        return all(tail is not None and self._is_handed(head, tail) for tail in tails)

    def around(self, span: UnitSpan) -> Iterator[tuple[int, str]]:
        ends = span.tails if span.holds_tail else (span.head, *span.tails)
        for call in self._calls:
            if self._path(call) in ends:
                yield from (
                    (id(each.owner), each.attribute) for each in (call, *call.around()) if each is not self._call
                )

    def _activation_before(self, tail: Call) -> UnitSpan | None:
        given = tail.args[0] if tail.args else None
        if not isinstance(given, torch.Tensor) or not has_matrices(tail.owner) or not self._runs_once(tail):
            return None
        feeding = self._outputs.feeding(given)
        if feeding is None or any(self._call not in call.around() for call in feeding):
            return None
        if any(each.owner is tail.owner or tail in each.around() for each in feeding):
            return None
        if not self._is_whole_projection(tail, given):
            return None
        if any(call.hidden is not None and call.hidden._version != call.output_version for call in feeding):
            return None  # The activation works in place: it keeps nothing that could be rebuilt.
        head = _common([self._path(tail), *map(self._path, feeding)])
        owner = self._call.owner.get_submodule(head)
        if any(isinstance(part, _WITH_STATISTICS) for part in owner.modules()) or self._num_calls[head] > 1:
            return None
        return UnitSpan(head, (self._path(tail),))

    def _is_whole_projection(self, call: Call, given: torch.Tensor) -> bool:
        """A projection that is no part of another one, as an adapter's base is."""
        if not _is_leaf(call.owner) and _num_projections(call.owner) < 2:
            return False
        around = (each for each in call.around() if each is not self._call and each.args and each.args[0] is given)
        return not any(_num_projections(each.owner) > 1 for each in around)

    def _is_handed(self, call: Call, other: Call) -> bool:
        is_output = bool(other.args) and isinstance(call.output, torch.Tensor) and other.args[0] is call.output
        return is_output and other.versions.get(0) == call.output_version

    def _runs_once(self, call: Call) -> bool:
        return self._num_calls[self._path(call)] == 1

    def _path(self, call: Call) -> str:
        return self._paths[id(call.owner)]


def can_name(block: nn.Module, path: str) -> bool:
    """Whether the block has every module that the spans name."""
    try:
        return all(has_module(block, part) for span in parse_spans(path) for part in span.paths)
    except ValueError:
        return False


def _is_norm(module: nn.Module) -> bool:
    if isinstance(module, _WITH_STATISTICS) or has_matrices(module) or next(module.children(), None) is not None:
        return False
    has_weights = next(module.parameters(), None) is not None
    return has_weights and _NORM_CLASS.search(type(module).__name__) is not None


def _is_leaf(module: nn.Module) -> bool:
    """A projection itself: its parts, if it has any, hold no parameters."""
    return has_matrices(module) and all(next(child.parameters(), None) is None for child in module.children())


def _num_projections(module: nn.Module) -> int:
    return sum(map(_is_leaf, module.modules()))


def _common(paths: Sequence[str]) -> str:
    """The innermost module that holds all of them; none of them itself."""
    parts = [path.split(".")[:-1] for path in paths]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _is_within(path: str, other: str) -> bool:
    return not other or path.startswith(f"{other}.")
