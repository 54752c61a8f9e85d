"""What each tool reaches under each cap, as a table, a page and a figure. Knows no tool and measures nothing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from line_chart import Line, Panel, draw
from rich.table import Table

_MIB = 2**20


class Failure(Protocol):
    """A tool that gave nothing to measure."""

    @property
    def tool(self) -> str: ...

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Measured:
    """One setting of one tool, as it was measured.

    Attributes:
        peak_ratio: Peak over that of the plain step.
        time_ratio: Step time over that of the plain step, from steps in turn.
        time_ratio_spread: Its standard error.
        first_step_s: Compilation included.
    """

    tool: str
    setting: str
    micro_batch_size: int
    peak_ratio: float
    peak_bytes: int
    time_ratio: float
    time_ratio_spread: float
    first_step_s: float


@dataclass(frozen=True)
class Setup:
    """How all of it was measured.

    Attributes:
        num_rounds: Steps of each setting that counted.
        searches: How our own settings were found, in a sentence.
        took_s: Wall time of the whole comparison, searches included.
    """

    machine: str
    num_rounds: int
    searches: str
    took_s: float


def best_within(measured: Sequence[Measured], cap: float) -> Measured | None:
    """The fastest whose peak is within this share of the plain peak; None where none is."""
    return min((each for each in measured if each.peak_ratio <= cap), key=lambda each: each.time_ratio, default=None)


def by_tool(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """In the order in which the tools first come."""
    tools: dict[str, list[Measured]] = {}
    for each in measured:
        tools.setdefault(each.tool, []).append(each)
    return tools


def table(measured: Sequence[Measured], caps: Sequence[float], search_times_s: Mapping[str, float]) -> Table:
    """Rows are tools, columns are caps; a tool without a search time is set by hand."""
    drawn = Table("tool", *(f"{cap:.0%}" for cap in caps), "search")
    for tool, of_tool in by_tool(measured).items():
        drawn.add_row(tool, *(_cell(best_within(of_tool, cap)) for cap in caps), _search_text(search_times_s.get(tool)))
    return drawn


def _cell(best: Measured | None) -> str:
    if best is None:
        return "-"
    spread = "" if math.isnan(best.time_ratio_spread) else f" +-{best.time_ratio_spread:.2f}"
    return f"{best.time_ratio:.2f}{spread} ({best.peak_ratio:.0%})"


def _search_text(time_s: float | None) -> str:
    if time_s is None:
        return "by hand"
    return "before" if math.isnan(time_s) else f"{time_s:.0f} s"


def page(
    measured: Sequence[Measured],
    caps: Sequence[float],
    failures: Sequence[Failure],
    search_times_s: Mapping[str, float],
    setup: Setup,
) -> str:
    """The text of docs/tools.md."""
    plain = measured[0]
    introduction = (
        "Written by `python benchmarks/tools.py`, which measures all of it anew: one process, steps of every candidate "
        f"in turn, {setup.num_rounds} each, on {setup.machine}. The work is the built-in GPT; 100 % is the plain "
        f"step's peak of {plain.peak_bytes / _MIB:.1f} MiB, and 1.00 is its time. A cell is the fastest setting of a "
        "tool whose measured peak is within the cap: time over the plain step's, its standard error, and the peak. "
        f"Every row does the same samples. {setup.searches} The whole comparison took {setup.took_s / 60:.0f} minutes."
    )
    lines = [
        "# Beside other tools",
        "",
        *textwrap.wrap(introduction, 120),
        "",
        _row(["tool", *(f"{cap:.0%}" for cap in caps), "search"]),
        _row(["---"] * (len(caps) + 2)),
    ]
    for tool, of_tool in by_tool(measured).items():
        search = _search_text(search_times_s.get(tool))
        lines.append(_row([tool, *(_cell(best_within(of_tool, cap)) for cap in caps), search]))
    lines += ["", "![time over peak of every setting](images/tools.svg)", ""]
    if failures:
        lines += ["Not measured:", ""] + [f"- {each.tool}: {each.reason}" for each in failures] + [""]
    lines += ["Every setting:", "", _row(["tool", "setting", "micro-batch", "peak", "time", "first step"])]
    lines.append(_row(["---"] * 6))
    for each in measured:
        time = f"{each.time_ratio:.3f} +-{each.time_ratio_spread:.3f}"
        figures = [str(each.micro_batch_size), f"{each.peak_ratio:.1%}", time, f"{each.first_step_s:.1f} s"]
        lines.append(_row([each.tool, each.setting, *figures]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def figure(measured: Sequence[Measured]) -> str:
    """Time over peak: for each tool the settings that no other of its own beats in both, as SVG."""
    tools = by_tool(measured)
    panels = []
    names = list(tools)
    for first in range(0, len(names), 3):
        lines = tuple(_line(name, tools[name]) for name in names[first : first + 3])
        panels.append(Panel("step time over the plain step's", lines))
    return draw(panels, x_title="peak, % of the plain step's")


def _line(name: str, of_tool: Sequence[Measured]) -> Line:
    front = [
        each
        for each in of_tool
        if not any(
            other.peak_ratio <= each.peak_ratio and other.time_ratio < each.time_ratio
            for other in of_tool
            if other is not each
        )
    ]
    front.sort(key=lambda each: each.peak_ratio)
    return Line(name, tuple(100 * each.peak_ratio for each in front), tuple(each.time_ratio for each in front))
