"""What each unit of a block costs to keep and to rebuild, sorted by what recomputing it buys: the ablation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runners.diagnosis.records import UnitCost
from search_spaces.actions import shown_action
from tuner.memory_size import format_bytes
from tuner.step_time_text import format_step_time, in_unit_of

#: Blocks of one kind differ in time alone, so a study has a dozen rows; a model with more is shown by its best ones.
_MAX_ROWS = 40


@dataclass(frozen=True)
class AblationRow:
    """One action on the blocks of a list that save the same: figures are those of one block or one segment.

    Attributes:
        regions: Which blocks: ``0-10 (11)``; of segments the ones that were measured.
        rebuild: Median over the blocks, and the range where they differ: ``1.2 ms (1.1-1.4)``.
        bytes_per_ms: None where rebuilding takes no time that could be measured.
        share_pct: Of the row that saves most per millisecond.
    """

    action: str
    blocks: str
    regions: str
    saved: str
    rebuild: str
    bytes_per_ms: str
    share_pct: float


@dataclass(frozen=True)
class AblationTable:
    """Attributes:
    num_left_out: Rows beyond those that are shown, which buy least.
    """

    micro_batch_size: int
    rows: tuple[AblationRow, ...]
    num_left_out: int


@dataclass(frozen=True)
class _Group:
    action: str
    blocks: str
    regions: tuple[tuple[int, int], ...]
    saved_bytes: int
    rebuild_times_s: tuple[float, ...]

    @property
    def rebuild_time_s(self) -> float:
        return statistics.median(self.rebuild_times_s)

    @property
    def bytes_per_s(self) -> float:
        """Infinite where something is saved for nothing."""
        if self.rebuild_time_s > 0:
            return self.saved_bytes / self.rebuild_time_s
        return float("inf") if self.saved_bytes > 0 else 0.0


def ablation_tables(costs: Iterable[UnitCost]) -> list[AblationTable]:
    """A table for each micro-batch, the largest first; what buys most memory for its time first."""
    by_size: dict[int, list[UnitCost]] = {}
    for cost in costs:
        by_size.setdefault(cost.micro_batch_size, []).append(cost)
    return [_table(size, by_size[size]) for size in sorted(by_size, reverse=True)]


def _table(micro_batch_size: int, costs: Sequence[UnitCost]) -> AblationTable:
    groups = sorted(_groups(costs), key=lambda group: group.bytes_per_s, reverse=True)
    most = max((group.bytes_per_s for group in groups if group.bytes_per_s < float("inf")), default=0.0)
    rows = tuple(_row(group, most) for group in groups[:_MAX_ROWS])
    return AblationTable(micro_batch_size, rows, len(groups) - len(rows))


def _groups(costs: Sequence[UnitCost]) -> list[_Group]:
    members: dict[tuple[str, str, int, int], list[UnitCost]] = {}
    for cost in costs:
        key = (cost.blocks, cost.action, cost.last - cost.first, cost.saved_bytes)
        members.setdefault(key, []).append(cost)
    return [
        _Group(
            action=shown_action(action) if action != "segment" else f"segment({length + 1})",
            blocks=blocks,
            regions=tuple(sorted({(cost.first, cost.last) for cost in group})),
            saved_bytes=saved_bytes,
            rebuild_times_s=tuple(cost.rebuild_time_s for cost in group),
        )
        for (blocks, action, length, saved_bytes), group in members.items()
    ]


def _row(group: _Group, most_bytes_per_s: float) -> AblationRow:
    is_priced = 0 < group.bytes_per_s < float("inf")
    return AblationRow(
        action=group.action,
        blocks=group.blocks,
        regions=_regions(group.regions),
        saved=format_bytes(group.saved_bytes),
        rebuild=_rebuild(group),
        bytes_per_ms=f"{format_bytes(round(group.bytes_per_s / 1000))} per ms" if is_priced else "",
        share_pct=100 * group.bytes_per_s / most_bytes_per_s if is_priced else 0.0,
    )


def _rebuild(group: _Group) -> str:
    least, most = min(group.rebuild_times_s), max(group.rebuild_times_s)
    median = group.rebuild_time_s
    texts = [in_unit_of(median, time_s) for time_s in (least, most)] if median > 0 else ["", ""]
    spread = f" ({texts[0]}-{texts[1]})" if texts[0] != texts[1] else ""
    return f"{format_step_time(median)}{spread}" if median > 0 else "0"


def _regions(regions: Sequence[tuple[int, int]]) -> str:
    """Runs of neighbours: ``0-10, 13``; segments by their first and last blocks all together."""
    runs: list[list[int]] = []
    for first, last in regions:
        if runs and first == runs[-1][1] + 1:
            runs[-1][1] = last
        else:
            runs.append([first, last])
    listed = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:6])
    return listed + (" ..." if len(runs) > 6 else "")
