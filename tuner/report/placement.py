"""Where a policy recomputes, block by block, as something to draw: one cell per block, segments bracketed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from search_spaces.actions import kept_by, shown_action
from search_spaces.choices import DEFAULT_BUDGET
from search_spaces.policy import BLOCK, NONE, OFFLOAD, SEGMENT, BlockListPlacement, RecomputePolicy, Region

#: Colors of the known actions, as the page names them.
_HUES = {NONE: "none", "attention": "sky", "mlp": "amber", "attention+mlp": "green", BLOCK: "rose", SEGMENT: "yellow"}
#: Of actions that are named after units of one's own; letters tell those apart that share one.
_OTHER_HUES = ("teal", "lilac", "sand")
_MEANINGS = {
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


def block_strips(policy: RecomputePolicy, budget_of_all: float | None = None) -> list[BlockStrip]:
    """A strip for each list of blocks of the policy.

    Args:
        budget_of_all: The compiler's memory budget of policies that have none of their own.
    """
    actions = _Actions(policy, budget_of_all if policy.compile_memory_budget is None else policy.compile_memory_budget)
    return [_strip(placement.canonical(), actions) for placement in policy.placement]


def legend(strips: Iterable[BlockStrip]) -> list[Action]:
    """The actions that occur, each once, those that keep more first."""
    found = {cell.action.name: cell.action for strip in strips for cell in strip.cells}
    order = [*_HUES, *sorted(found.keys() - _HUES.keys())]
    return [found[name] for name in order if name in found]


class _Actions:
    """Letters, colors and words, the same for all lists of blocks of a policy.

    Attributes:
        within_budget: What becomes of blocks without an action where the compiler has a budget; empty without one.
    """

    def __init__(self, policy: RecomputePolicy, budget: float | None) -> None:
        names = sorted({name for placement in policy.placement for name in placement.actions()} - _HUES.keys())
        self._hues = {**_HUES, **{n: _OTHER_HUES[i % len(_OTHER_HUES)] for i, n in enumerate(names)}}
        self.within_budget = ""
        if budget is not None and budget != DEFAULT_BUDGET:
            kept = f"{round(100 * budget, 4):g}%"
            self.within_budget = f"left to the compiler, which may keep {kept} of the activations"

    def action(self, name: str) -> Action:
        if name == NONE:
            return Action(NONE, "", self._hues[NONE], self.within_budget or "keeps everything")
        if kept_by(name):
            kept = ", ".join(kept_by(name))
            return Action(shown_action(name), "S", self._hues[name], f"the block, but for what {kept} give")
        letters = "".join(unit[0].upper() for unit in name.split("+"))
        units = " and ".join(name.split("+"))
        meaning = _MEANINGS.get(name, f"{units}, each on its own" if "+" in name else f"the {units} of the block")
        return Action(name, letters, self._hues[name], meaning)


def _strip(placement: BlockListPlacement, actions: _Actions) -> BlockStrip:
    units = ", ".join(name if name == path else f"{name} = {path}" for name, path in placement.units)
    plain = actions.action(NONE)
    cells = [BlockCell(number, plain, "", f"block {number}: {plain.meaning}") for number in range(placement.num_blocks)]
    for region in placement.regions:
        for number in range(region.first, region.last + 1):
            edge, tip = _place_in(region, number)
            cells[number] = BlockCell(number, actions.action(region.action), edge, tip)
    words = _words(placement, actions.within_budget)
    return BlockStrip(placement.blocks, placement.num_blocks, units, tuple(cells), words)


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


def _words(placement: BlockListPlacement, within_budget: str) -> str:
    """``blocks 0-5: block; 6-7: attention+mlp; the other 4 keep everything``."""
    parts = []
    for region in placement.regions:
        span = f"{region.first}" if region.first == region.last else f"{region.first}-{region.last}"
        size = "" if region.segment_size is None else f" of {region.segment_size} blocks"
        parts.append(f"{span}: {shown_action(region.action)}{size}")
    num_kept = placement.num_blocks - sum(region.num_blocks for region in placement.regions)
    rest_does = within_budget or "keep everything"
    if not parts:
        return f"all {placement.num_blocks} blocks {rest_does}"
    rest = f"; the other {num_kept} {rest_does}" if num_kept else ""
    return f"blocks {'; '.join(parts)}{rest}"
