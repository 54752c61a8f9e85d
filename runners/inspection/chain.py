"""Whether consecutive blocks may share one recompute region: only if the parent hands each block's output unchanged to
the next, with the same further arguments."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from runners.inspection.call_trace import Call
from runners.regions.same_values import same_values


def segment_refusal(names: Sequence[str], blocks: Sequence[nn.Module], calls: Sequence[Call]) -> str | None:
    """Why the blocks are no chain, as one sentence with the first pair that breaks it; None where they are one.

    Args:
        names: The blocks' names for people, one for each block.
        calls: Calls of the blocks in one forward pass, in order.
    """
    aliases = alias_groups(blocks)
    if aliases:
        return f"one module stands at positions {', '.join(map(str, aliases[0]))}"
    by_block: dict[int, list[Call]] = {id(block): [] for block in blocks}
    for call in calls:
        by_block[id(call.owner)].append(call)
    for name, block in zip(names, blocks, strict=True):
        times = len(by_block[id(block)])
        if times != 1:
            return f"{name} was not called" if times == 0 else f"{name} was called {times} times in one forward pass"
    for index in range(len(blocks) - 1):
        before, after = by_block[id(blocks[index])][0], by_block[id(blocks[index + 1])][0]
        refusal = _pair_refusal(names[index], before, names[index + 1], after, calls)
        if refusal is not None:
            return refusal
    return None


def alias_groups(blocks: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Groups of positions that hold one and the same module."""
    positions: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        positions.setdefault(id(block), []).append(index)
    return tuple(tuple(group) for group in positions.values() if len(group) > 1)


def _pair_refusal(name: str, call: Call, next_name: str, next_call: Call, calls: Sequence[Call]) -> str | None:
    if calls.index(next_call) < calls.index(call):
        return f"{next_name} was called before {name}"
    if call.hidden is None:
        return f"{name} returns a {type(call.output).__name__} and no tensor"
    if next_call.given is not call.hidden:
        return f"{next_name} receives something else than the output of {name}"
    if call.hidden._version != call.output_version or next_call.versions[_first_key(next_call)] != call.output_version:
        return f"the output of {name} is edited in place before or after {next_name} reads it"
    if len(call.args) != len(next_call.args) or list(call.kwargs) != list(next_call.kwargs):
        return f"{next_name} is called with other arguments than {name}"
    keys = [*range(len(call.args)), *call.kwargs]
    for key in keys[1:]:
        argument = _argument_name(call, key)
        if not same_values(_argument(call, key), _argument(next_call, key)):
            return f"{next_name} receives another {argument} than {name}"
        if call.versions.get(key) != next_call.versions.get(key):
            return f"{argument} is edited in place between {name} and {next_name}"
    return None


def _first_key(call: Call) -> int | str:
    return 0 if call.args else next(iter(call.kwargs))


def _argument(call: Call, key: int | str) -> Any:
    return call.args[key] if isinstance(key, int) else call.kwargs[key]


def _argument_name(call: Call, key: int | str) -> str:
    """The parameter's name where the block's signature tells it."""
    if isinstance(key, str):
        return key
    parameters = list(inspect.signature(call.owner.forward).parameters.values())
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[key] if key < len(positional) else f"argument {key + 1}"
