"""What a search may choose between: micro-batch sizes, and per list of blocks the actions and segment sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, zip_longest
from typing import Literal, TypeAlias

from search_spaces.actions import (
    KEEP_PRESETS,
    SELECTIVE,
    action_kind,
    asks_for_keep_sets,
    kept_by,
    normal_action,
    selective_action,
    units_of,
    why_not_compiled,
)
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import (
    BLOCK,
    NONE,
    SEGMENT,
    UNIT_JOINER,
    WHOLE_BLOCK_ACTIONS,
    BatchShape,
    BlockListPlacement,
    RecomputePolicy,
    Region,
)

RngChoice: TypeAlias = bool | Literal["search"]
#: One placement for each list of blocks, in the model's order.
Placements: TypeAlias = tuple[BlockListPlacement, ...]
#: Of the compiler's memory budget: it keeps what it likes.
DEFAULT_BUDGET = 1.0


@dataclass(frozen=True)
class BlockListChoices:
    """What may be chosen for one list of blocks.

    Attributes:
        actions: Possible here and allowed by the user, ``none`` first; units of an action in alphabetical order.
        segment_sizes: In blocks, ascending, none above the list's length; empty where ``segment`` is no choice.
        modules: Positions of each distinct module, in order of its first position. One choice is made per module,
            since a module that stands at several positions recomputes at all of them.
        borders: First blocks of the stages of a pipeline but the first; no segment reaches over one.
    """

    blocks: BlockList
    actions: tuple[str, ...]
    segment_sizes: tuple[int, ...]
    modules: tuple[tuple[int, ...], ...]
    borders: tuple[int, ...] = ()

    @property
    def num_modules(self) -> int:
        return len(self.modules)

    @property
    def sqrt_segment_size(self) -> int:
        """The segment size nearest to the square root of the depth, in ratio; the smaller one of two as near.

        Equal blocks whose inner activations weigh as much as their boundary are cheapest in memory there.
        """
        root = math.sqrt(self.blocks.num_blocks)
        return min(self.segment_sizes, key=lambda size: (abs(math.log(size / root)), size))

    def place(self, module_actions: Sequence[str], segment_size: int | None = None) -> BlockListPlacement:
        """The canonical placement with the given action per module, shape (num_modules,).

        Neighbours with action ``segment`` share one region, divided into segments of ``segment_size`` blocks.
        """
        by_position = [NONE] * self.blocks.num_blocks
        for positions, action in zip(self.modules, module_actions, strict=True):
            for position in positions:
                by_position[position] = action
        regions = tuple(
            Region(first, last, action, segment_size if action == SEGMENT else None)
            for first, last, action in _runs(by_position, self.borders)
        )
        return BlockListPlacement(self.blocks.path, self.blocks.num_blocks, self.blocks.units, regions).canonical()

    def module_actions(self, placement: BlockListPlacement, segment_size: int | None = None) -> tuple[str, ...]:
        """The action of each module in a canonical placement of this list, shape (num_modules,).

        Args:
            placement: Of this list.
            segment_size: What :meth:`place` will be given. A single block that closes a run of segments then reads
                ``block`` where it cannot be what segments of this size leave over. None reads actions as they are.

        Raises:
            ValueError: The placement is of another list, or gives positions of one module different actions.
        """
        where = f"placement of {placement.blocks}"
        expected = (self.blocks.path, self.blocks.num_blocks, tuple(sorted(self.blocks.units)))
        if (placement.blocks, placement.num_blocks, tuple(sorted(placement.units))) != expected:
            raise ValueError(
                f"{where}: {placement.num_blocks} blocks with units {dict(placement.units)}; this search places "
                f"{self.blocks.path} with {self.blocks.num_blocks} blocks and units {dict(self.blocks.units)}"
            )
        by_position = list(placement.actions())
        if segment_size is not None:
            for block in _closing_blocks(placement.regions, segment_size):
                by_position[block] = BLOCK
        for positions in self.modules:
            other = next((p for p in positions if by_position[p] != by_position[positions[0]]), None)
            if other is not None:
                raise ValueError(
                    f"{where}: block {other} has action {by_position[other]}, but it is the same module as block "
                    f"{positions[0]}, which has {by_position[positions[0]]}; give both one action"
                )
        return tuple(by_position[positions[0]] for positions in self.modules)

    def segment_refusal(self, placement: BlockListPlacement) -> str:
        """The message that refuses the segments of a placement."""
        region = next((r for r in placement.regions if r.action == SEGMENT), placement.regions[0])
        return (
            f"{placement.blocks}: block {region.first} begins segments of {region.segment_size or 1}; this search "
            f"tries one segment size per list out of {', '.join(map(str, self.segment_sizes)) or NONE}"
        )


def _closing_blocks(regions: Sequence[Region], segment_size: int) -> Iterator[int]:
    """Single blocks at the end of segments that a run of segments of this size would not leave there."""
    for region, after in zip_longest(regions, regions[1:]):
        if region.action != SEGMENT or region.segments()[-1][0] != region.last:
            continue
        run_goes_on = after is not None and after.action == SEGMENT and after.first == region.last + 1
        if run_goes_on or region.segment_size != segment_size:
            yield region.last


def _runs(actions: Sequence[str], borders: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """First and last position of each run of one action, which ends at a border at the latest."""
    stages = [sum(border <= position for border in borders) for position in range(len(actions))]
    first = 0
    for (_, action), run in groupby(zip(stages, actions, strict=True)):
        length = len(list(run))
        yield first, first + length - 1, action
        first += length


@dataclass(frozen=True)
class SearchChoices:
    """What the user lets a search choose between, for a model of this shape.

    Attributes:
        micro_batch_sizes: Each times ``data_parallel_degree`` must divide ``global_batch_size`` exactly.
        actions: As the user wrote them: ``none``, ``block``, ``segment``, a unit, or units joined by ``+``;
            ``selective`` for the keep-sets found for a list, ``selective:`` with a preset or with operators for those.
            ``none`` is a choice even where it is left out, since every search measures the baseline.
        segment_sizes: In blocks; None takes a few sensible ones per list.
        preserve_rng_state: ``search`` tries both.
        reshard_after_forward: What blocks that are sharded over ranks do after forward; ``search`` tries both.
        allowed: The only placements that may be tried, canonical, those that recompute least first, the plain one among
            them; None where actions combine freely.
        compile: What trials compile, as in a policy; within compiled code not every region can be placed.
        compile_memory_budgets: Budgets of the compiler that are tried in place of a placement; empty leaves it at its
            default, which is a choice even where it is left out, since every search measures the baseline.
        stage_borders: First blocks of the stages of a pipeline but the first, in the one list that it is cut in.
    """

    shape: ModelShape
    global_batch_size: int
    micro_batch_sizes: tuple[int, ...]
    actions: tuple[str, ...]
    segment_sizes: tuple[int, ...] | None = None
    preserve_rng_state: RngChoice = True
    data_parallel_degree: int = 1
    reshard_after_forward: RngChoice = True
    allowed: tuple[Placements, ...] | None = None
    compile: str | None = None
    compile_memory_budgets: tuple[float, ...] = ()
    stage_borders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.compile_memory_budgets and self.compile is None:
            raise ValueError("compile_memory_budgets is set, but compile is not; a budget is of compiled code")
        if not self.micro_batch_sizes:
            raise ValueError("micro_batch_sizes is empty; at least one size that divides the global batch is needed")
        for size in self.micro_batch_sizes:
            self.batch(size)
        for action in self.actions:
            _normal_action(action)
        wrong = [size for size in self.segment_sizes or () if size < 1]
        if wrong:
            raise ValueError(f"segment_sizes has {wrong[0]}; whole numbers of at least 1 are allowed")

    def batch(self, micro_batch_size: int) -> BatchShape:
        return BatchShape.split(
            global_batch_size=self.global_batch_size,
            micro_batch_size=micro_batch_size,
            data_parallel_degree=self.data_parallel_degree,
        )

    @cached_property
    def batches(self) -> tuple[BatchShape, ...]:
        """The shapes that may be tried, largest micro-batch first."""
        return tuple(self.batch(size) for size in sorted(set(self.micro_batch_sizes), reverse=True))

    @property
    def rng_choices(self) -> tuple[bool, ...]:
        return (True, False) if self.preserve_rng_state == "search" else (self.preserve_rng_state,)

    @property
    def reshard_choices(self) -> tuple[bool | None, ...]:
        """As policies spell them: None is torch's own way."""
        choices = {True: (None,), False: (False,), "search": (None, False)}
        return choices[self.reshard_after_forward]

    @cached_property
    def budget_choices(self) -> tuple[float, ...]:
        """Largest first; 1 is the compiler's default, the only one under which actions are placed."""
        return tuple(sorted({DEFAULT_BUDGET, *map(float, self.compile_memory_budgets)}, reverse=True))

    @cached_property
    def plain_placements(self) -> Placements:
        return tuple(of_list.place([NONE] * of_list.num_modules) for of_list in self.block_lists)

    def budget_policy(self, batch: BatchShape, budget: float) -> RecomputePolicy:
        """The canonical policy that leaves what is rebuilt to the compiler."""
        policy = self.policy(batch, self.plain_placements)
        if budget == DEFAULT_BUDGET:
            return policy
        return replace(policy, compile=self.compile, compile_memory_budget=budget).canonical()

    def policy(self, batch: BatchShape, placements: Placements) -> RecomputePolicy:
        """The canonical policy of these placements, all else as the search tries it first."""
        preserve, reshard = self.rng_choices[0], self.reshard_choices[0]
        return RecomputePolicy(batch, placements, preserve, reshard_after_forward=reshard).canonical()

    @cached_property
    def block_lists(self) -> tuple[BlockListChoices, ...]:
        """What may be chosen for each list of the model, in the model's order."""
        return tuple(self._for_list(blocks) for blocks in self.shape.block_lists)

    def _for_list(self, blocks: BlockList) -> BlockListChoices:
        actions = dict.fromkeys((NONE, *(each for action in self.actions for each in meant_by(action, blocks))))
        possible = tuple(action for action in actions if self._why_impossible(action, blocks) is None)
        wanted = auto_segment_sizes(blocks.num_blocks) if self.segment_sizes is None else self.segment_sizes
        sizes = tuple(sorted({min(size, blocks.num_blocks) for size in wanted})) if SEGMENT in possible else ()
        if not sizes:
            possible = tuple(action for action in possible if action != SEGMENT)
        return BlockListChoices(blocks, possible, sizes, _modules(blocks), self.stage_borders)

    def _why_impossible(self, action: str, blocks: BlockList) -> str | None:
        reason = why_impossible(action, blocks)
        return why_not_compiled(action, dict(blocks.units)) if reason is None and self.compile is not None else reason

    def notes(self) -> tuple[str, ...]:
        """What the user asked for and lists cannot do, one sentence for those of which the same is true."""
        paths: dict[str, list[str]] = {}
        for blocks in self.shape.block_lists:
            for note in self._notes_on(blocks):
                paths.setdefault(note, []).append(blocks.path)
        return tuple(f"{', '.join(of_note)}: {note}" for note, of_note in paths.items())

    def _notes_on(self, blocks: BlockList) -> Iterator[str]:
        without_unit = []
        for action in dict.fromkeys(map(_normal_action, self.actions)):
            reason = self._why_impossible(action, blocks)
            if reason is None and asks_for_keep_sets(action) and not meant_by(action, blocks):
                reason = _why_no_keep_set(action)
            if reason is not None and _missing_units(action, blocks):
                without_unit.append(action)
            elif reason is not None:
                yield f"action {action} is not tried: {reason}."
        if without_unit:
            missing = dict.fromkeys(unit for action in without_unit for unit in _missing_units(action, blocks))
            yield (
                f"{_counted('action', without_unit)} {'is' if len(without_unit) == 1 else 'are'} not tried: the blocks "
                f"have no {_counted('unit', list(missing))} "
                f"(units: {', '.join(blocks.unit_names) or NONE})."
            )
        above = [size for size in self.segment_sizes or () if size > blocks.num_blocks]
        if above and self._for_list(blocks).segment_sizes:
            yield (
                f"segments of {', '.join(map(str, sorted(above)))} blocks are one segment over the whole list, which "
                f"has {blocks.num_blocks}."
            )


def every_micro_batch_size(global_batch_size: int, *, data_parallel_degree: int = 1) -> tuple[int, ...]:
    """Every micro-batch size that divides the global batch exactly, ascending; empty where the degree does not."""
    if global_batch_size % data_parallel_degree:
        return ()
    per_rank = global_batch_size // data_parallel_degree
    return tuple(size for size in range(1, per_rank + 1) if per_rank % size == 0)


def auto_segment_sizes(num_blocks: int) -> tuple[int, ...]:
    """A few segment sizes worth trying on a list of this length, ascending; empty for a single block.

    With equal blocks the least memory is at ``sqrt(num_blocks * boundary / inner)`` blocks, boundary and inner being
    the bytes at a block's border and within it. Inner outweighs boundary in most models, so the useful sizes lie from
    2 to the square root of the depth, and one step above it for small blocks. Divisors are preferred where one is
    near: a last segment that is shorter saves less. Above half of the depth two segments hardly save anything.
    """
    if num_blocks < 2:
        return ()
    largest = max(2, num_blocks // 2)
    root = math.sqrt(num_blocks)
    divisors = [size for size in range(2, largest + 1) if num_blocks % size == 0]
    sizes = {2, _near_divisor(root / 2, divisors), _near_divisor(2 * root, divisors)}
    sizes.add(max((d for d in divisors if root / 2 <= d <= root), default=math.floor(root)))
    sizes.add(min((d for d in divisors if root <= d <= 2 * root), default=math.ceil(root)))
    return tuple(sorted({min(max(size, 2), largest) for size in sizes}))


def _near_divisor(target: float, divisors: Sequence[int]) -> int:
    """The nearest divisor if it is within a quarter of the target, else the target rounded."""
    near = [d for d in divisors if 0.8 <= d / target <= 1.25]
    return min(near, key=lambda d: abs(math.log(d / target))) if near else round(target)


def why_impossible(action: str, blocks: BlockList) -> str | None:
    """Why no block of this list can take the action, as half a sentence; None where it can."""
    if action == SEGMENT:
        if blocks.segment_refusal is not None:
            return blocks.segment_refusal
        if blocks.num_blocks < 2:
            return "the list has a single block"
        return "one module stands at several positions" if blocks.aliases else None
    if action in blocks.idle_keeps:
        return "its blocks run none of these operators"
    missing = _missing_units(action, blocks)
    if not missing:
        return _overlap(action, blocks)
    return f"the blocks have no unit {missing[0]} (units: {', '.join(blocks.unit_names) or NONE})"


def _missing_units(action: str, blocks: BlockList) -> list[str]:
    """Units that the action names and the blocks do not have; none for actions on whole blocks."""
    return [unit for unit in units_of(action) if unit not in blocks.unit_names]


def _overlap(action: str, blocks: BlockList) -> str | None:
    units = set(units_of(action))
    inner, outer = next((pair for pair in blocks.overlaps if units.issuperset(pair)), (None, None))
    return None if inner is None else f"{inner} and {outer} share a part of the block, and regions have to be apart"


def meant_by(action: str, blocks: BlockList) -> tuple[str, ...]:
    """The actions of this list's blocks that one as the user wrote it stands for, in normal form.

    One for each keep-set that was found where it asks for such, so perhaps none.
    """
    if asks_for_keep_sets(action):
        return tuple(selective_action(found.keep) for found in blocks.keep_sets if found.asked == action)
    return (_normal_action(action),)


def _why_no_keep_set(action: str) -> str:
    if action == SELECTIVE:
        return "no operator of its blocks is worth keeping"
    return f"its blocks run no operator that is among the {', '.join(kept_by(action))}"


def _counted(noun: str, names: Sequence[str]) -> str:
    """For example ``actions mlp and moe``."""
    *others, last = names
    return f"{noun}s {', '.join(others)} and {last}" if others else f"{noun} {last}"


def _normal_action(action: str) -> str:
    """The action with its units in alphabetical order, each once."""
    if action_kind(action) == SELECTIVE:
        _check_selective(action)
        return normal_action(action)
    if action in WHOLE_BLOCK_ACTIONS:
        return action
    units = units_of(action)
    wrong = [unit for unit in units if not unit.strip() or unit in WHOLE_BLOCK_ACTIONS]
    if wrong:
        raise ValueError(
            f"action {action!r} joins {wrong[0]!r}; allowed are {NONE}, {BLOCK}, {SEGMENT}, or units joined by "
            f"{UNIT_JOINER}, for example attention{UNIT_JOINER}mlp"
        )
    return normal_action(action)


def _check_selective(action: str) -> None:
    if asks_for_keep_sets(action):
        return
    try:
        selective_action(kept_by(action))
    except ValueError as error:
        raise ValueError(
            f"action {action!r}: {error}; or {SELECTIVE} alone, or {SELECTIVE}: with one of {', '.join(KEEP_PRESETS)}"
        ) from error


def _modules(blocks: BlockList) -> tuple[tuple[int, ...], ...]:
    """Positions of each distinct module; groups that overlap are one module."""
    module_of = list(range(blocks.num_blocks))
    for group in blocks.aliases:
        joined = {module_of[position] for position in group}
        module_of = [min(joined) if module in joined else module for module in module_of]
    return tuple(tuple(p for p, module in enumerate(module_of) if module == first) for first in sorted(set(module_of)))
