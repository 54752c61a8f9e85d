"""A traced step's sums as a table for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from runners.step_timeline.records import TracedStep
from tuner.timeline.text import group_rows, group_titles


def timeline_table(step: TracedStep, num_blocks: int | None) -> Table:
    """What each unit of the first blocks keeps, and what is rebuilt of it.

    Args:
        num_blocks: None tells all blocks apart.
    """
    table = Table(title=f"{step.policy.summary()}: kept for backward", title_style="bold")
    rows = group_rows(step, num_blocks)
    titles = group_titles(rows)
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index < 2 else "right")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        ends_block = following is not None and following.block != row.block
        table.add_row(*map(Text, row.cells()[: len(titles)]), end_section=ends_block)
    return table
