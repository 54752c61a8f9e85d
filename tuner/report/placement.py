"""Where a policy recomputes, block by block, as something to draw: one cell per block, segments bracketed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from search_spaces.actions import kept_by, shown_action
from search_spaces.policy import BLOCK, NONE, OFFLOAD, SEGMENT, BlockListPlacement, RecomputePolicy, Region

#: Colors of the known actions, as the page names them.
_HUES = {NONE: "none", "attention": "sky", "mlp": "amber", "attention+mlp": "green", BLOCK: "rose", SEGMENT: "yellow"}
#: Of actions that are named after units of one's own; letters tell those apart that share one.
_OTHER_HUES = ("teal", "lilac", "sand")
_MEANINGS = {
    NONE: "keeps everything",
    BLOCK: "the whole block",
    SEGMENT: "blocks rebuilt at once, bracketed",
    OFFLOAD: "nothing is rebuilt; the block's activations wait on the host",
}


@dataclass(frozen=True)
class Action:
    """How an action is drawn.

    Attributes:
        letters: In the cell, so that color alone tells nothing apart: ``A``, ``AM``; empty for none.
        meaning: What it rebuilds, in words.
    """

    name: str
    letters: str
    hue: str
    meaning: str


@dataclass(frozen=True)
class BlockCell:
    """One block.

    Attributes:
        edge: ``first``, ``inner``, ``last`` or ``only`` block of a segment; empty outside segments.
        tip: What it does, in words.
    """

    number: int
    action: Action
    edge: str
    tip: str


@dataclass(frozen=True)
class BlockStrip:
    """One list of blocks.

    Attributes:
        units: ``attention = attn, mlp = mlp``; empty where there are none.
        words: What it recomputes, as a sentence.
    """

    path: str
    num_blocks: int
    units: str
    cells: tuple[BlockCell, ...]
    words: str


def block_strips(policy: RecomputePolicy) -> list[BlockStrip]:
    """A strip for each list of blocks of the policy."""
    actions = _Actions(policy.placement)
    strips = [_strip(placement.canonical(), actions) for placement in policy.placement]
    if policy.compile_memory_budget is None or policy.recomputes:
        return strips
    words = f"left to the compiler, which may keep {policy.compile_memory_budget:.0%} of the activations"
    return [
        replace(
            strip, words=words, cells=tuple(replace(cell, tip=f"block {cell.number}: {words}") for cell in strip.cells)
        )
        for strip in strips
    ]


def legend(strips: Iterable[BlockStrip]) -> list[Action]:
    """The actions that occur, each once, those that keep more first."""
    found = {cell.action.name: cell.action for strip in strips for cell in strip.cells}
    order = [*_HUES, *sorted(found.keys() - _HUES.keys())]
    return [found[name] for name in order if name in found]


class _Actions:
    """Letters and colors, the same for all lists of blocks of a policy."""

    def __init__(self, placements: Sequence[BlockListPlacement]) -> None:
        names = sorted({name for placement in placements for name in placement.actions()} - _HUES.keys())
        self._hues = {**_HUES, **{n: _OTHER_HUES[i % len(_OTHER_HUES)] for i, n in enumerate(names)}}

    def action(self, name: str) -> Action:
        if kept_by(name):
            kept = ", ".join(kept_by(name))
            return Action(shown_action(name), "S", self._hues[name], f"the block, but for what {kept} give")
        letters = "" if name == NONE else "".join(unit[0].upper() for unit in name.split("+"))
        units = " and ".join(name.split("+"))
        meaning = _MEANINGS.get(name, f"{units}, each on its own" if "+" in name else f"the {units} of the block")
        return Action(name, letters, self._hues[name], meaning)


def _strip(placement: BlockListPlacement, actions: _Actions) -> BlockStrip:
    units = ", ".join(name if name == path else f"{name} = {path}" for name, path in placement.units)
    cells = [
        _cell(number, NONE, "", f"block {number}: keeps everything", actions) for number in range(placement.num_blocks)
    ]
    for region in placement.regions:
        for number in range(region.first, region.last + 1):
            edge, tip = _place_in(region, number)
            cells[number] = _cell(number, region.action, edge, tip, actions)
    return BlockStrip(placement.blocks, placement.num_blocks, units, tuple(cells), _words(placement))


def _cell(number: int, action: str, edge: str, tip: str, actions: _Actions) -> BlockCell:
    return BlockCell(number, actions.action(action), edge, tip)


def _place_in(region: Region, number: int) -> tuple[str, str]:
    if region.action == OFFLOAD:
        return "", f"block {number}: activations wait on the host"
    if region.keep:
        return "", f"block {number}: recomputed, but for what {', '.join(region.keep)} give"
    if region.action != SEGMENT:
        return "", f"block {number}: {shown_action(region.action)} recomputed"
    first, last = next((first, last) for first, last in region.segments() if first <= number <= last)
    edge = "only" if first == last else {first: "first", last: "last"}.get(number, "inner")
    return edge, f"block {number}: recomputed in one segment with blocks {first} to {last}"


def _words(placement: BlockListPlacement) -> str:
    """``blocks 0-5: block; 6-7: attention+mlp; the other 4 keep everything``."""
    parts = []
    for region in placement.regions:
        span = f"{region.first}" if region.first == region.last else f"{region.first}-{region.last}"
        size = "" if region.segment_size is None else f" of {region.segment_size} blocks"
        parts.append(f"{span}: {shown_action(region.action)}{size}")
    num_kept = placement.num_blocks - sum(region.num_blocks for region in placement.regions)
    if not parts:
        return f"all {placement.num_blocks} blocks keep everything"
    rest = f"; the other {num_kept} keep everything" if num_kept else ""
    return f"blocks {'; '.join(parts)}{rest}"
