"""Where two policies recompute, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from search_spaces.actions import shown_action
from search_spaces.policy import NONE, SEGMENT, BlockListPlacement, RecomputePolicy
from tuner.comparison.records import BlockDifference
from tuner.results import StudyResults


def block_differences(
    a: StudyResults, policy_a: RecomputePolicy, b: StudyResults, policy_b: RecomputePolicy
) -> tuple[BlockDifference, ...] | None:
    """Runs of blocks that the two treat differently; None where the studies' lists of blocks are not the same."""
    lengths = _list_lengths(a)
    if lengths != _list_lengths(b):
        return None
    actions_a, actions_b = block_actions(policy_a), block_actions(policy_b)
    return tuple(
        difference
        for path, length in lengths.items()
        for difference in _runs(path, actions_a.get(path, (NONE,) * length), actions_b.get(path, (NONE,) * length))
    )


def block_actions(policy: RecomputePolicy) -> dict[str, tuple[str, ...]]:
    """Action of each block by path of its list, shape (num_blocks,); ``segment(3)`` for segments of three."""
    return {placement.blocks: _actions(placement.canonical()) for placement in policy.placement}


def num_recomputed_blocks(policy: RecomputePolicy) -> int:
    """Blocks of which at least a part is recomputed."""
    return sum(action != NONE for actions in block_actions(policy).values() for action in actions)


def num_recompute_regions(policy: RecomputePolicy) -> int:
    """Stretches that are each rebuilt at once: a segment, a whole block, or each unit of a block."""
    regions = [region for placement in policy.placement for region in placement.canonical().regions]
    return sum(
        len(region.segments()) if region.action == SEGMENT else region.num_blocks * max(1, len(region.unit_names()))
        for region in regions
    )


def likeness(policy: RecomputePolicy) -> object:
    """Equal for policies that do the same to every list of blocks, whatever its path, at equal micro-batch and budget.

    Lists that are treated alike from end to end compare whatever their length.
    """
    per_list = []
    for actions in block_actions(policy).values():
        is_uniform = len(set(actions)) == 1
        per_list.append(actions[0] if is_uniform else actions)
    placed = tuple(per_list) if policy.recomputes else ()
    return placed, policy.batch, policy.canonical().preserve_rng_state, policy.compile_memory_budget


def _actions(placement: BlockListPlacement) -> tuple[str, ...]:
    actions = list(map(shown_action, placement.actions()))
    for region in placement.regions:
        if region.segment_size is not None:
            actions[region.first : region.last + 1] = [f"{SEGMENT}({region.segment_size})"] * region.num_blocks
    return tuple(actions)


def _list_lengths(results: StudyResults) -> dict[str, int]:
    return {blocks.path: blocks.num_blocks for blocks in results.model.block_lists}


def _runs(path: str, actions_a: tuple[str, ...], actions_b: tuple[str, ...]) -> Iterator[BlockDifference]:
    pairs = enumerate(zip(actions_a, actions_b, strict=True))
    for (action_a, action_b), group in groupby(pairs, key=lambda pair: pair[1]):
        positions = [position for position, _ in group]
        if action_a != action_b:
            yield BlockDifference(blocks=path, first=positions[0], last=positions[-1], a=action_a, b=action_b)
