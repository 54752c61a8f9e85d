"""Which regions the ablation of a model has, and how few placements and forward passes show them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import zip_longest

from search_spaces.actions import kept_by, units_of
from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.model_shape import BlockList
from search_spaces.policy import BLOCK, OFFLOAD, SEGMENT, UNIT_JOINER, BlockListPlacement, Region
from search_spaces.unit_span import is_spans, parse_spans

#: Lists up to this long are measured region by region; of longer ones the first, middle and last of each kind.
_MOST_LISTED = 16


def _regions(of_list: BlockListChoices) -> Iterator[Region]:
    """Every region of the ablation: one block each, or one segment; a module's first position stands for all."""
    blocks = of_list.blocks
    for action in _actions(of_list):
        yield from (Region(positions[0], positions[0], action) for positions in of_list.modules)
    for size in of_list.segment_sizes:
        if size > 1:
            whole = Region(0, blocks.num_blocks - 1, SEGMENT, size)
            yield from (Region(a, b, SEGMENT, b - a + 1) for a, b in whole.segments() if b > a)


def keys_of(of_list: BlockListChoices, inner_kinds: Sequence[int]) -> dict[Region, Hashable]:
    """Every region, with a key that is equal for those that save alike.

    Args:
        inner_kinds: A number for each block, equal for those that keep alike tensors.
    """
    # The first and the last block have other neighbours.
    kinds = (-1, *inner_kinds[1:-1], -2) if len(inner_kinds) > 1 else tuple(inner_kinds)
    keys: dict[Region, Hashable] = {}
    for region in _regions(of_list):
        # What a unit keeps depends on nothing outside of its block.
        alike = inner_kinds if region.unit_names() else kinds
        keys[region] = (region.action, region.segment_size, tuple(alike[region.first : region.last + 1]))
    return keys


def positions_of(of_list: BlockListChoices, region: Region) -> tuple[int, ...]:
    """Where the region begins: at each position of the module that it is of."""
    if region.action == SEGMENT:
        return (region.first,)
    return next(positions for positions in of_list.modules if positions[0] == region.first)


def _actions(of_list: BlockListChoices) -> list[str]:
    """Each unit, units joined as the search joins them, what it keeps of operators, and the whole block."""
    units = sorted(of_list.blocks.unit_names)
    joined = [action for action in of_list.actions if len(units_of(action)) > 1] or [
        UNIT_JOINER.join(group) for group in _apart(of_list.blocks) if len(group) > 1
    ]
    moved = [OFFLOAD] if OFFLOAD in of_list.actions else []
    return [*units, *joined, *filter(kept_by, of_list.actions), *moved, BLOCK]


def _apart(blocks: BlockList) -> list[list[str]]:
    """The units in as few groups as need be, so that no two of a group share a part of the block."""
    groups: list[list[str]] = []
    for unit in sorted(blocks.unit_names):
        sharing = {name for pair in blocks.overlaps if unit in pair for name in pair}
        group = next((group for group in groups if not sharing.intersection(group)), None)
        if group is None:
            groups.append([unit])
        else:
            group.append(unit)
    return groups


def shown_regions(of_list: BlockListChoices, keys: Mapping[Region, Hashable]) -> Iterator[Region]:
    """All regions of a short list; of a long one the first, middle and last of those that save alike."""
    alike: defaultdict[Hashable, list[Region]] = defaultdict(list)
    for region, key in keys.items():
        alike[key].append(region)
    for regions in alike.values():
        if of_list.blocks.num_blocks <= _MOST_LISTED:
            yield from regions
        else:
            yield from dict.fromkeys((regions[0], regions[len(regions) // 2], regions[-1]))


def ablation_placements(choices: SearchChoices) -> Iterator[tuple[BlockListPlacement, ...]]:
    """Few placements of all lists at once that hold each region of the ablation."""
    lists = choices.block_lists
    groups = [[UNIT_JOINER.join(group) for group in _apart(of_list.blocks)] for of_list in lists]
    kept = [list(filter(kept_by, of_list.actions)) for of_list in lists]
    for turn in zip_longest(*([*of_units, *of_kept] for of_units, of_kept in zip(groups, kept, strict=True))):
        yield tuple(_everywhere(of_list.blocks, action or BLOCK) for of_list, action in zip(lists, turn, strict=True))
    yield tuple(_everywhere(of_list.blocks, BLOCK) for of_list in lists)
    for size in sorted({size for of_list in lists for size in of_list.segment_sizes if size > 1}):
        yield tuple(_everywhere(of_list.blocks, SEGMENT, size) for of_list in lists if size in of_list.segment_sizes)


def _everywhere(blocks: BlockList, action: str, segment_size: int | None = None) -> BlockListPlacement:
    return placement_of(blocks, [Region(0, blocks.num_blocks - 1, action, segment_size)])


def placement_of(blocks: BlockList, regions: Sequence[Region]) -> BlockListPlacement:
    """These regions; what they do not name keeps everything."""
    return BlockListPlacement(blocks.path, blocks.num_blocks, blocks.units, tuple(regions))


def region_names(blocks: BlockList, region: Region) -> Iterator[str]:
    """As the recompute regions call themselves."""
    first = f"{blocks.path}.{region.first}"
    if region.action == SEGMENT:
        yield f"{first} to {blocks.path}.{region.last}"
    elif region.action == BLOCK:
        yield first
    elif region.keep:
        yield f"{first} {region.action}"
    else:
        paths = dict(blocks.units)
        for unit in region.unit_names():
            spans = parse_spans(paths[unit]) if is_spans(paths[unit]) else [paths[unit]]
            yield from (f"{first}.{part}" for part in spans)
