"""What the time of a step is explained by: which share of each list of blocks takes which action, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.policy import BLOCK, NONE, SEGMENT, BatchShape, BlockListPlacement, RecomputePolicy, Region

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
#: What regions that do not preserve the state of the random generators save, over all lists.
RNG_OFF = "rng off"
#: What blocks that stay whole after forward save of communication.
RESHARD_OFF = "reshard off"
#: What the compiler's memory budgets cost, each by itself.
BUDGET = "budget"
#: Stands for the position of a budget's label where a policy has no budget.
NO_BUDGET = -1


@dataclass(frozen=True)
class Label:
    """One way to recompute blocks of one list that has a price of its own.

    Attributes:
        list_index: In the order of the model's lists; None for what holds over all lists.
        action: As in a policy.
        segment_size: In blocks, for segments.
        budget: Of the compiler, for `BUDGET`.
    """

    list_index: int | None
    action: str
    segment_size: int | None = None
    budget: float | None = None


@dataclass(frozen=True)
class ListFeatures:
    """Features of placements of one list.

    Attributes:
        shares: Share of the list's blocks under each label, shape (..., num_labels).
        tilts: The same blocks weighted by their position, from -1 for the first to 1 for the last block of the list,
            over the number of blocks; 0 for a label that is spread evenly. Shape as ``shares``.
    """

    shares: FloatArray
    tilts: FloatArray


class PlacementFeatures:
    """Features of the policies of one search; the labels are always the same ones in the same order."""

    def __init__(self, choices: SearchChoices) -> None:
        self._choices = choices

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        labels = [label for index, of in enumerate(self._choices.block_lists) for label in _labels_of(index, of)]
        if len(self._choices.reshard_choices) > 1:
            labels.append(Label(None, RESHARD_OFF))
        labels += [Label(None, BUDGET, budget=budget) for budget in self._choices.budget_choices[1:]]
        if False in self._choices.rng_choices and True in self._choices.rng_choices:
            labels.append(Label(None, RNG_OFF))
        return tuple(labels)

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        """Largest micro-batch first."""
        return self._choices.batches

    def batch_index(self, policy: RecomputePolicy) -> int:
        return self.batches.index(policy.batch)

    @property
    def has_rng_label(self) -> bool:
        return bool(self.labels) and self.labels[-1].action == RNG_OFF

    @property
    def reshard_label(self) -> int | None:
        """Position of the label of blocks that stay whole; None where a search does not try both."""
        return next((index for index, label in enumerate(self.labels) if label.action == RESHARD_OFF), None)

    @cached_property
    def budget_labels(self) -> dict[float, int]:
        """Position of the label of each memory budget that is tried beside the compiler's default."""
        return {label.budget: index for index, label in enumerate(self.labels) if label.budget is not None}

    def budget_labels_of(self, features: ListFeatures) -> IntArray:
        """Where each policy's budget label is, `NO_BUDGET` without one; shape (...) of features (..., num_labels)."""
        positions = np.full(features.shares.shape[:-1], NO_BUDGET, dtype=np.int64)
        for position in self.budget_labels.values():
            positions[features.shares[..., position] > 0] = position
        return positions

    def of(self, policy: RecomputePolicy) -> ListFeatures:
        """Features of one policy, shape (num_labels,)."""
        by_path = {placement.blocks: placement for placement in policy.placement}
        shares, tilts = np.zeros(self.num_labels), np.zeros(self.num_labels)
        for index, blocks in enumerate(self._choices.block_lists):
            placement = by_path.get(blocks.blocks.path)
            if placement is not None:
                of_list = self.of_placement(index, placement)
                shares += of_list.shares
                tilts += of_list.tilts
        if self.has_rng_label and not policy.preserve_rng_state:
            shares[-1] = shares[:-1].sum()
        if self.reshard_label is not None and policy.reshard_after_forward is False:
            shares[self.reshard_label] = 1.0
        if policy.compile_memory_budget in self.budget_labels:
            shares[self.budget_labels[policy.compile_memory_budget]] = 1.0
        return ListFeatures(shares, tilts)

    def of_placement(self, list_index: int, placement: BlockListPlacement) -> ListFeatures:
        """What one list contributes, shape (num_labels,)."""
        return self.of_cells(list_index, [cell for region in placement.regions for cell in cells_of(region)])

    def of_cells(self, list_index: int, cells: Sequence[Region]) -> ListFeatures:
        """What the cells of one list contribute, shape (num_labels,)."""
        num_blocks = self._choices.block_lists[list_index].blocks.num_blocks
        shares, tilts = np.zeros(self.num_labels), np.zeros(self.num_labels)
        for cell in cells:
            label = self._index_of(list_index, cell)
            shares[label] += cell.num_blocks / num_blocks
            # The mean position of the cell's blocks, times their share.
            tilts[label] += ((cell.first + cell.last + 1) / num_blocks - 1) * cell.num_blocks / num_blocks
        return ListFeatures(shares, tilts)

    def _index_of(self, list_index: int, cell: Region) -> int:
        """The cell's label; segments of a size that is no choice take the one of the nearest size."""
        of_list = self._by_list[list_index]
        if cell.action != SEGMENT:
            return of_list[cell.action, None]
        size = cell.segment_size or cell.num_blocks
        sizes = [known for action, known in of_list if action == SEGMENT and known is not None]
        if not sizes:
            return of_list[BLOCK, None]
        return of_list[SEGMENT, min(sizes, key=lambda known: (abs(known - size), known))]

    @cached_property
    def _by_list(self) -> list[dict[tuple[str, int | None], int]]:
        return [
            {
                (label.action, label.segment_size): position
                for position, label in enumerate(self.labels)
                if label.list_index == index
            }
            for index in range(len(self._choices.block_lists))
        ]


def cells_of(region: Region) -> list[Region]:
    """The region cut into what is recomputed at once, each segment with the size of its run."""
    if region.action == NONE:
        return []
    if region.action != SEGMENT:
        return [Region(block, block, region.action) for block in range(region.first, region.last + 1)]
    return [
        Region(first, last, BLOCK) if first == last else Region(first, last, SEGMENT, region.segment_size)
        for first, last in region.segments()
    ]


def _labels_of(list_index: int, choices: BlockListChoices) -> list[Label]:
    labels = [Label(list_index, action) for action in choices.actions if action not in (NONE, SEGMENT)]
    if choices.segment_sizes and BLOCK not in choices.actions:
        labels.append(Label(list_index, BLOCK))  # The single block that a run of segments leaves over.
    return labels + [Label(list_index, SEGMENT, size) for size in choices.segment_sizes if size > 1]
