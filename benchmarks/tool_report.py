"""What each tool reaches under each cap, as a table and a page. Knows no tool and measures nothing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from runners.measure.spread import Center

_MIB = 2**20
#: A difference within this many standard errors is none.
_ERRORS_OF_A_TIE = 2.0
#: Steps of each setting from which a difference is told at all. The best of some twenty settings is picked by the same
#: steps that it is then judged by, and of a few steps luck picks it.
_FEWEST_STEPS = 8


@dataclass(frozen=True)
class Failure:
    """A tool or a setting that gave nothing to measure, and why."""

    tool: str
    reason: str


@dataclass(frozen=True)
class Measured:
    """One setting of one tool, as it was measured.

    Attributes:
        peak_ratio: Peak over that of the plain step.
        speed: How many times as fast as the plain step, from steps in turn.
        first_step_s: Compilation included.
        astray: How far its gradients are off, relative to what they should be, where it trains another model.
        is_compared: Its gradients were compared here; false for what others are compared with.
    """

    tool: str
    setting: str
    micro_batch_size: int
    peak_bytes: int
    peak_ratio: float
    speed: Center
    first_step_s: float
    astray: float | None = None
    is_compared: bool = True

    @property
    def name(self) -> str:
        """As candidates are named."""
        return f"{self.tool}: {self.setting} @{self.micro_batch_size}"


@dataclass(frozen=True)
class Versus:
    """Our best setting within a cap beside the best of all others: how many times as fast it is.

    Attributes:
        num_steps: That each took.
    """

    cap: float
    ours: Measured
    other: Measured
    speed: Center
    num_steps: int

    @property
    def outcome(self) -> str:
        if self.num_steps < _FEWEST_STEPS:
            return f"no verdict from {self.num_steps} steps"
        difference = self.speed.value - 1
        if not abs(difference) > _ERRORS_OF_A_TIE * self.speed.standard_error:
            return "as fast within the spread"
        return "ahead" if difference > 0 else "behind"


@dataclass(frozen=True)
class Setup:
    """How all of it was measured.

    Attributes:
        command: That measures all of it anew.
        work: The name of what was trained.
        num_rounds: Steps of each setting that counted.
        searches: How our own settings were found, in a sentence.
        took_s: Wall time of the whole comparison, searches included.
    """

    command: str
    work: str
    machine: str
    num_rounds: int
    searches: str
    took_s: float


def best_within(measured: Sequence[Measured], cap: float) -> Measured | None:
    """The fastest that trains the same model within this share of the plain peak; None where none does."""
    within = (each for each in measured if each.peak_ratio <= cap and each.astray is None)
    return max(within, key=lambda each: each.speed.value, default=None)


def by_tool(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """In the order in which the tools first come."""
    tools: dict[str, list[Measured]] = {}
    for each in measured:
        tools.setdefault(each.tool, []).append(each)
    return tools


def table(measured: Sequence[Measured], caps: Sequence[float], search_times_s: Mapping[str, float]) -> Table:
    """Rows are tools, columns are caps; a tool without a search time is set by hand."""
    drawn = Table("tool", *(f"{cap:.0%}" for cap in caps), "search")
    for row in _rows(measured, caps, search_times_s):
        drawn.add_row(*row)
    return drawn


def page(
    measured: Sequence[Measured],
    caps: Sequence[float],
    versus: Sequence[Versus],
    failures: Sequence[Failure],
    search_times_s: Mapping[str, float],
    setup: Setup,
    image: str,
) -> str:
    """The text of docs/tools.md, or of a page of another work.

    Args:
        image: Name of the figure's file in the folder images beside the page.
    """
    plain = measured[0]
    introduction = (
        f"Written by `{setup.command}`, which measures all of it anew: the steps of every setting in turn, "
        f"{setup.num_rounds} each and one untimed before each, on {setup.machine}. The work is `{setup.work}`; 100 % "
        f"is the plain step's peak of {plain.peak_bytes / _MIB:.1f} MiB, and 1.00 is its speed. Every setting does the "
        "same samples per step. A "
        "cell is the fastest setting of a tool whose measured peak is within the cap: how many times as fast as the "
        "plain step, its standard error, and the peak. A dash: no setting of the tool is within the cap. A setting "
        "whose first step gives other gradients than training without recompute stands under no cap; those "
        "that recompute nothing are what others are compared with. "
        f"{setup.searches} The whole comparison took {setup.took_s / 60:.0f} minutes."
    )
    lines = [
        "# Beside other tools",
        "",
        *textwrap.wrap(introduction, 120),
        "",
        *_markdown(["tool", *(f"{cap:.0%}" for cap in caps), "search"], _rows(measured, caps, search_times_s)),
        "",
        f"![speed over peak of every setting](images/{image})",
        "",
        "Ours beside the best of all others within each cap, from the same rounds:",
        "",
        *_markdown(["cap", "ours", "best of the others", "ours is as fast", ""], map(_versus_row, versus)),
        "",
        *(["Not measured:", "", *(f"- {each.tool}: {each.reason}" for each in failures), ""] if failures else []),
        "Every setting:",
        "",
        *_markdown(
            ["tool", "setting", "micro-batch", "peak", "speed", "first step", "trains"], map(_setting_row, measured)
        ),
    ]
    return "\n".join(lines) + "\n"


def _rows(
    measured: Sequence[Measured], caps: Sequence[float], search_times_s: Mapping[str, float]
) -> list[tuple[str, ...]]:
    return [
        (tool, *(_cell(best_within(of_tool, cap)) for cap in caps), _search_text(search_times_s.get(tool)))
        for tool, of_tool in by_tool(measured).items()
    ]


def _cell(best: Measured | None) -> str:
    return "-" if best is None else f"{_speed(best.speed)} ({best.peak_ratio:.0%})"


def _speed(speed: Center) -> str:
    # Of a single round, and of the plain step beside itself, there is no spread to speak of.
    has_spread = speed.standard_error > 0 and not math.isnan(speed.standard_error)
    return f"{speed.value:.2f} +-{speed.standard_error:.2f}" if has_spread else f"{speed.value:.2f}"


def _search_text(time_s: float | None) -> str:
    return "by hand" if time_s is None else f"{time_s:.0f} s"


def _versus_row(pair: Versus) -> tuple[str, ...]:
    def text(each: Measured) -> str:
        return f"{each.setting} @{each.micro_batch_size} ({each.peak_ratio:.0%})"

    other = f"{pair.other.tool}, {text(pair.other)}"
    return f"{pair.cap:.0%}", text(pair.ours), other, f"{_speed(pair.speed)} times", pair.outcome


def _setting_row(each: Measured) -> tuple[str, ...]:
    speed = _speed(each.speed)
    return (
        each.tool,
        each.setting,
        str(each.micro_batch_size),
        f"{each.peak_ratio:.1%}",
        speed,
        f"{each.first_step_s:.1f} s",
        _training(each),
    )


def _training(each: Measured) -> str:
    if each.astray is not None:
        return f"**another model**: gradients off by {each.astray:.0%}"
    return "the same" if each.is_compared else "not compared here"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
