"""A traced step's sums as a table for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from runners.step_timeline.records import TracedStep
from tuner.timeline_text import GROUP_TITLES, group_rows


def timeline_table(step: TracedStep, num_blocks: int | None) -> Table:
    """What each unit of the first blocks keeps, and what is rebuilt of it.

    Args:
        num_blocks: None tells all blocks apart.
    """
    table = Table(title=f"{step.policy.summary()}: kept for backward", title_style="bold")
    for index, title in enumerate(GROUP_TITLES):
        table.add_column(title, justify="left" if index < 2 else "right")
    rows = group_rows(step, num_blocks)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        ends_block = following is not None and following.block != row.block
        table.add_row(*map(Text, row.cells()), end_section=ends_block)
    return table
