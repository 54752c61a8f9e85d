"""What each block, unit and segment costs to keep and to rebuild, as tables: the best trade first."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from runners.diagnosis.records import UnitCost
from search_spaces.actions import SEGMENT, shown_action
from tuner.diagnosis.place_names import positions_text
from tuner.memory_size import format_bytes

#: Micro-batch sizes that stand side by side in 100 columns.
_MOST_SIZES = 4


@dataclass(frozen=True)
class AlikeCosts:
    """Regions of one list under one action that save the same bytes.

    Attributes:
        positions: First and last block of each region.
        rebuild_time_s: The median over the regions.
    """

    blocks: str
    action: str
    positions: tuple[tuple[int, int], ...]
    saved_bytes: int
    rebuild_time_s: float

    @property
    def saved_bytes_per_ms(self) -> float:
        return self.saved_bytes / max(self.rebuild_time_s * 1e3, 1e-9)

    def where(self) -> str:
        """The blocks in words: ``0-5``, or ``0-1, 2-3`` of segments."""
        if all(first == last for first, last in self.positions):
            return positions_text([first for first, _ in self.positions])
        segments = [f"{first}-{last}" for first, last in self.positions]
        return ", ".join(segments) if len(segments) <= 3 else f"{segments[0]}, {segments[1]}, .. {segments[-1]}"


def alike_costs(costs: Iterable[UnitCost]) -> list[AlikeCosts]:
    """Regions that save the same, together; the most bytes saved per millisecond of rebuild first."""
    groups: defaultdict[tuple[str, str, int], list[UnitCost]] = defaultdict(list)
    for cost in costs:
        groups[cost.blocks, action_name(cost), cost.saved_bytes].append(cost)
    alike = [
        AlikeCosts(
            blocks,
            action,
            tuple((cost.first, cost.last) for cost in of_group),
            saved_bytes,
            statistics.median(cost.rebuild_time_s for cost in of_group),
        )
        for (blocks, action, saved_bytes), of_group in groups.items()
    ]
    return sorted(alike, key=lambda each: -each.saved_bytes_per_ms)


def action_name(cost: UnitCost) -> str:
    """As a policy's summary writes it: ``segment(2)``."""
    return f"{SEGMENT}({cost.last - cost.first + 1})" if cost.action == SEGMENT else shown_action(cost.action)


def ablation_table(costs: Sequence[UnitCost], micro_batch_size: int) -> Table:
    """Every region at one size, the best trade first; alike ones share a row."""
    alike = alike_costs(cost for cost in costs if cost.micro_batch_size == micro_batch_size)
    has_lists = len({each.blocks for each in alike}) > 1
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("list", "blocks", "action") if has_lists else ("blocks", "action"):
        table.add_column(title, overflow="fold")
    for title in ("saves", "rebuild", "saved per ms"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in alike:
        table.add_row(
            *([Text(each.blocks)] if has_lists else []),
            each.where(),
            Text(each.action),
            format_bytes(each.saved_bytes),
            f"{each.rebuild_time_s * 1e3:.2f} ms",
            format_bytes(round(each.saved_bytes_per_ms)),
        )
    return table


def sizes_table(costs: Sequence[UnitCost]) -> Table | None:
    """Bytes and time of the middle region under each action, micro-batch sizes side by side; None for a single size."""
    sizes = sorted({cost.micro_batch_size for cost in costs}, reverse=True)[:_MOST_SIZES]
    if len(sizes) < 2:
        return None
    lists = list(dict.fromkeys(cost.blocks for cost in costs))
    groups: defaultdict[tuple[str, str], defaultdict[int, list[UnitCost]]] = defaultdict(lambda: defaultdict(list))
    for cost in costs:
        groups[cost.blocks, action_name(cost)][cost.micro_batch_size].append(cost)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("action", overflow="fold")
    for size in sizes:
        table.add_column(f"at {size}", justify="right", no_wrap=True)
    for (blocks, action), by_size in groups.items():
        label = f"{blocks}: {action}" if len(lists) > 1 else action
        table.add_row(Text(label), *(_median_text(by_size[size]) for size in sizes))
    return table


def _median_text(costs: Sequence[UnitCost]) -> str:
    if not costs:
        return ""
    saved = statistics.median_low(cost.saved_bytes for cost in costs)
    seconds = statistics.median(cost.rebuild_time_s for cost in costs)
    return f"{format_bytes(saved)}, {seconds * 1e3:.2f} ms"
