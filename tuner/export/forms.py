"""Forms of placement that training stacks can say, such as every block or the first n, and what does not fit them.

A form either counts off its placements or lets every block choose from a few actions; both say which block of a policy
is the first that they cannot follow. Knows no stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from search_spaces.actions import kept_by, units_of
from search_spaces.model_shape import BlockList
from search_spaces.policy import (
    BLOCK,
    NONE,
    OFFLOAD,
    SEGMENT,
    UNIT_JOINER,
    BlockListPlacement,
    RecomputePolicy,
    Region,
    normal_action,
)
from search_spaces.unit_span import is_spans

BlockLists: TypeAlias = tuple[BlockList, ...]
#: What is done to one block: the action, and the first and last block that are recomputed at once with it.
Cell: TypeAlias = tuple[str, int, int]
#: A cell per block of each list, in the order of the model's lists.
Layout: TypeAlias = tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class ListedForm:
    """A form whose placements can be counted off.

    Attributes:
        text: What it is, to complete "accepts ...": ``every block``.
        layouts: Every placement of this form for a model with these lists; of none where the form does not apply.
    """

    text: str
    layouts: Callable[[BlockLists], Iterator[Layout]]

    def num_fitting(self, layout: Layout, lists: BlockLists) -> int:
        """Blocks from the first one on, over all lists, that some placement of this form treats alike."""
        if layout in _listed(self.layouts, lists):
            return sum(map(len, layout))
        return max((_num_alike(layout, other) for other in _listed(self.layouts, lists)), default=0)


@dataclass(frozen=True)
class FreeForm:
    """A form in which every block may have any of some actions.

    Attributes:
        text: What it is, to complete "accepts ...".
        allows: Whether a block of this list may have the action; a segment reads ``segment``.
    """

    text: str
    allows: Callable[[str, BlockList], bool]

    def num_fitting(self, layout: Layout, lists: BlockLists) -> int:
        """Blocks from the first one on, over all lists, whose actions are allowed."""
        number = 0
        for blocks, cells in zip(lists, layout, strict=True):
            for action, _, _ in cells:
                if not self.allows(action, blocks):
                    return number
                number += 1
        return number


Form: TypeAlias = ListedForm | FreeForm


def layout_of(policy: RecomputePolicy, lists: BlockLists) -> Layout:
    """What the policy does to every block; lists that it does not place keep everything.

    Raises:
        ValueError: The policy places a list that is not among these.
    """
    by_path = {placement.blocks: placement.canonical() for placement in policy.placement}
    unknown = sorted(by_path.keys() - {blocks.path for blocks in lists})
    if unknown:
        known = ", ".join(blocks.path for blocks in lists) or "none"
        raise ValueError(
            f"placement names {unknown[0]}, which is no list of blocks of this model; its lists are {known}"
        )
    return tuple(
        _cells(blocks.num_blocks, by_path[blocks.path].regions if blocks.path in by_path else ()) for blocks in lists
    )


def placements_of(layout: Layout, lists: BlockLists) -> tuple[BlockListPlacement, ...]:
    """The canonical placements that treat every block as the layout says."""
    return tuple(
        BlockListPlacement(
            blocks.path,
            blocks.num_blocks,
            blocks.units,
            tuple(
                Region(first, last, action, last - first + 1 if action == SEGMENT else None)
                for action, first, last in dict.fromkeys(cells)
                if action != NONE
            ),
        ).canonical()
        for blocks, cells in zip(lists, layout, strict=True)
    )


def first_misfit(policy: RecomputePolicy, forms: Sequence[Form], lists: BlockLists) -> str | None:
    """The first block that none of the forms can follow, with its place; None where one of them fits the policy."""
    layout = layout_of(policy, lists)
    total = sum(map(len, layout))
    fitting = max((form.num_fitting(layout, lists) for form in forms), default=0)
    if fitting == total:
        return None
    for blocks, cells in zip(lists, layout, strict=True):
        if fitting < len(cells):
            return f"{blocks.path}: block {fitting} {_says(cells[fitting])}"
        fitting -= len(cells)
    raise AssertionError("a form fits at most all blocks")


def depends_on_position(layout: Layout) -> bool:
    """Whether it matters which block is which: false where all are treated alike, each on its own."""
    actions = {action for cells in layout for action, _, _ in cells}
    return len(actions) > 1 or SEGMENT in actions


def one_list(form: ListedForm) -> ListedForm:
    """The form, for models with a single list of blocks only."""

    def layouts(lists: BlockLists) -> Iterator[Layout]:
        return form.layouts(lists) if len(lists) == 1 else iter(())

    return ListedForm(form.text, layouts)


def _nothing(lists: BlockLists) -> Iterator[Layout]:
    yield tuple(_everywhere(blocks, NONE) for blocks in lists)


def _every_block(lists: BlockLists) -> Iterator[Layout]:
    yield tuple(_everywhere(blocks, BLOCK) for blocks in lists)


def _first_blocks(lists: BlockLists) -> Iterator[Layout]:
    for number in range(1, sum(blocks.num_blocks for blocks in lists) + 1):
        yield _chosen(lists, lambda index, number=number: index < number)  # type: ignore[misc]  # bound per turn


def _every_kth_from_the_first(lists: BlockLists) -> Iterator[Layout]:
    for k in range(2, sum(blocks.num_blocks for blocks in lists) + 1):
        yield _chosen(lists, lambda index, k=k: index % k == 0)  # type: ignore[misc]  # bound per turn


def _every_kth_from_the_kth(lists: BlockLists) -> Iterator[Layout]:
    for k in range(2, sum(blocks.num_blocks for blocks in lists) + 1):
        yield _chosen(lists, lambda index, k=k: index % k == k - 1)  # type: ignore[misc]  # bound per turn


def _equal_segments(lists: BlockLists) -> Iterator[Layout]:
    for size in range(2, max(blocks.num_blocks for blocks in lists) + 1):
        if all(blocks.num_blocks % size == 0 for blocks in lists):
            yield tuple(_cells(b.num_blocks, (Region(0, b.num_blocks - 1, SEGMENT, size),)) for b in lists)


def _segments(lists: BlockLists) -> Iterator[Layout]:
    for size in range(2, max(blocks.num_blocks for blocks in lists) + 1):
        yield tuple(_cells(b.num_blocks, (Region(0, b.num_blocks - 1, SEGMENT, size),)) for b in lists)


NOTHING = ListedForm("no recompute", _nothing)
EVERY_BLOCK = ListedForm("every block whole", _every_block)
FIRST_BLOCKS = ListedForm("the first n blocks whole", _first_blocks)
#: Over all lists in turn: blocks 0, k, 2k and so on.
EVERY_KTH_FROM_THE_FIRST = ListedForm("every k-th block from block 0 on", _every_kth_from_the_first)
#: Over all lists in turn: blocks k-1, 2k-1 and so on.
EVERY_KTH_FROM_THE_KTH = ListedForm("every k-th block from block k-1 on", _every_kth_from_the_kth)
#: Whole lists in segments of k blocks, k a divisor of their lengths.
EQUAL_SEGMENTS = ListedForm("segments of k blocks throughout, k a divisor of their number", _equal_segments)
#: The same, where the last segment may be shorter.
SEGMENTS = ListedForm("segments of k blocks throughout", _segments)
#: Any choice of blocks, each recomputed whole.
ANY_BLOCKS = FreeForm("any blocks whole", lambda action, blocks: action in (NONE, BLOCK))
#: Any action of each block but segments.
ANY_WITHOUT_SEGMENTS = FreeForm("any choice for each block but segments", lambda action, blocks: action != SEGMENT)
#: Whole blocks and units that are modules: what a stack can say that wraps modules by their names.
ANY_MODULES = FreeForm(
    "any choice of whole blocks, and of units that are modules, for each block",
    lambda action, blocks: action in (NONE, BLOCK) or _are_modules(action, blocks),
)
#: The same, and blocks that keep what operators give, all calls of each.
ANY_MODULES_OR_KEPT = FreeForm(
    f"{ANY_MODULES.text}; whole blocks but for the outputs of operators, all calls of each",
    lambda action, blocks: ANY_MODULES.allows(action, blocks) or keeps_whole_operators(action),
)
ANYTHING = FreeForm("any placement", lambda action, blocks: True)


#: Whole blocks but for the outputs of operators that are kept, every call of them.
EVERY_BLOCK_BUT_OPERATORS = FreeForm(
    "every block but for the outputs of operators, all calls of each",
    lambda action, blocks: keeps_whole_operators(action),
)


def keeps_whole_operators(action: str) -> bool:
    """Whether the action keeps operators' outputs, and not those of some calls alone."""
    return bool(kept_by(action)) and not any("[" in entry for entry in kept_by(action))


def first_blocks_then(unit: str) -> ListedForm:
    """The first n blocks whole and a unit of the next m, which is every block's unit for n = 0 and m = all."""

    def layouts(lists: BlockLists) -> Iterator[Layout]:
        if len(lists) != 1 or unit not in lists[0].unit_names:
            return
        total = lists[0].num_blocks
        for whole, end in ((n, m) for n in range(total) for m in range(n + 1, total + 1)):
            actions = [BLOCK] * whole + [unit] * (end - whole) + [NONE] * (total - end)
            yield (tuple((action, i, i) for i, action in enumerate(actions)),)

    return ListedForm(f"the first n blocks whole and {unit} of the next m", layouts)


def every_unit(*units: str) -> ListedForm:
    """These units of every block, each a recompute region of its own; for models whose blocks all have them."""
    action = UNIT_JOINER.join(sorted(units))

    def layouts(lists: BlockLists) -> Iterator[Layout]:
        if lists and all(set(units) <= set(blocks.unit_names) for blocks in lists):
            yield tuple(_everywhere(blocks, action) for blocks in lists)

    return ListedForm(f"{' and '.join(units)} of every block", layouts)


@lru_cache(maxsize=256)
def _listed(layouts: Callable[[BlockLists], Iterator[Layout]], lists: BlockLists) -> dict[Layout, None]:
    return dict.fromkeys(layouts(lists))


def _cells(num_blocks: int, regions: Sequence[Region]) -> tuple[Cell, ...]:
    cells: list[Cell] = [(NONE, block, block) for block in range(num_blocks)]
    for region in regions:
        if region.action == SEGMENT:
            for first, last in region.segments():
                cells[first : last + 1] = [_segment(first, last)] * (last - first + 1)
        elif region.action != NONE:
            for block in range(region.first, region.last + 1):
                cells[block] = (normal_action(region.action), block, block)
    return tuple(cells)


def _are_modules(action: str, blocks: BlockList) -> bool:
    paths = dict(blocks.units)
    units = units_of(action)
    return bool(units) and not any(paths[unit].endswith("()") or is_spans(paths[unit]) for unit in units)


def _segment(first: int, last: int) -> Cell:
    return (BLOCK if first == last else SEGMENT, first, last)


def _everywhere(blocks: BlockList, action: str) -> tuple[Cell, ...]:
    return tuple((action, block, block) for block in range(blocks.num_blocks))


def _chosen(lists: BlockLists, is_chosen: Callable[[int], bool]) -> Layout:
    """The blocks of all lists counted in turn, recomputed whole where chosen."""
    layout = []
    start = 0
    for blocks in lists:
        layout.append(tuple((BLOCK if is_chosen(start + i) else NONE, i, i) for i in range(blocks.num_blocks)))
        start += blocks.num_blocks
    return tuple(layout)


def _num_alike(layout: Layout, other: Layout) -> int:
    number = 0
    for cells, others in zip(layout, other, strict=True):
        for cell, another in zip(cells, others, strict=True):
            if cell != another:
                return number
            number += 1
    return number


def _says(cell: Cell) -> str:
    action, first, last = cell
    if action == NONE:
        return "keeps everything"
    if action == BLOCK:
        return "is recomputed whole"
    if action == SEGMENT:
        return f"is recomputed in one segment of blocks {first} to {last}"
    if kept_by(action):
        return f"is recomputed but for what {', '.join(kept_by(action))} give"
    return "waits on the host" if action == OFFLOAD else f"recomputes {action}"
