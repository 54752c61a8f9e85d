"""Who holds what at the highest moment of a step, as a table: list of blocks, block, unit, and outside of blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from runners.diagnosis.records import PeakSplit, PlaceMemory
from runners.trial import MemoryByKind
from tuner.diagnosis.place_names import outside_name, positions_text
from tuner.memory_size import BYTES_PER_UNIT

_COLUMNS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer_states": "optimizer",
    "activations": "activations",
    "temporary": "temporary",
}
#: Columns of the terminal that names may take; with them the table fits into 100.
_LABEL_WIDTH = 31
#: Units of a block with their memory; equal for blocks that share rows.
_Parts = tuple[tuple[str | None, MemoryByKind], ...]


@dataclass(frozen=True)
class _TableRow:
    label: str
    kinds: tuple[int, ...]
    is_sum: bool = False


def place_table(split: PeakSplit, unit: str) -> Table:
    """By place and kind; alike blocks share rows, buffers count as weights, and the last row is the peak.

    Args:
        unit: Of the figures, for example ``MiB``.
    """
    rows = list(_rows(split.places))
    # Without gradients in it, say where backward has just begun, that column is left out.
    shown = [index for index in range(len(_COLUMNS)) if any(row.kinds[index] for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("where", overflow="fold", max_width=_LABEL_WIDTH)
    for title in (*(list(_COLUMNS.values())[index] for index in shown), "all", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        total = sum(row.kinds)
        cells = [_amount(row.kinds[index], unit) for index in shown]
        share = f"{total / split.peak_memory_bytes:.0%}"
        table.add_row(Text(row.label), *cells, _amount(total, unit), share, style="bold" if row.is_sum else "")
    return table


def _amount(num_bytes: int, unit: str) -> str:
    return f"{num_bytes / BYTES_PER_UNIT[unit]:,.1f}" if num_bytes else ""


def _rows(places: Sequence[PlaceMemory]) -> Iterator[_TableRow]:
    shown: set[str] = set()
    for place in places:
        if place.blocks is None:
            yield _TableRow(outside_name(place), _kinds([place.memory_bytes]))
        elif place.blocks not in shown:
            shown.add(place.blocks)
            yield from _rows_of_list(place.blocks, [each for each in places if each.blocks == place.blocks])
    yield _TableRow("all", _kinds(place.memory_bytes for place in places), is_sum=True)


def _rows_of_list(path: str, places: Sequence[PlaceMemory]) -> Iterator[_TableRow]:
    by_block: defaultdict[int, list[PlaceMemory]] = defaultdict(list)
    for place in places:
        by_block[place.block or 0].append(place)
    alike: defaultdict[_Parts, list[int]] = defaultdict(list)
    for block, of_block in by_block.items():
        alike[tuple((part.unit, part.memory_bytes) for part in of_block)].append(block)
    yield _TableRow(f"{path}, all {len(by_block)}", _kinds(place.memory_bytes for place in places), is_sum=True)
    for parts, blocks in alike.items():
        each = ", each" if len(blocks) > 1 else ""
        yield _TableRow(f"  {positions_text(blocks)}{each}", _kinds(memory for _, memory in parts))
        if len(parts) > 1:
            yield from (_TableRow(f"    {unit or 'other parts'}", _kinds([memory])) for unit, memory in parts)


def _kinds(memories: Iterable[MemoryByKind]) -> tuple[int, ...]:
    listed = list(memories)
    sums = {kind: sum(getattr(memory, kind) for memory in listed) for kind in MemoryByKind.model_fields}
    sums["parameters"] += sums["buffers"]
    return tuple(sums[kind] for kind in _COLUMNS)
