"""Tables of the comparison, in Markdown, and their place in a page of the docs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search_metrics import CHECKPOINTS, RegretCurve, Summary

from search_spaces.whole_file import write_whole
from tuner.user_error import UserError

_HEADER = (
    "sampler",
    "trials to 1 %",
    "above the best at the end",
    "trials over the cap",
    f"front after {' / '.join(map(str, CHECKPOINTS))} trials",
    "trials to 99 % of the front",
    "predicted time off by",
    "within 90 % interval",
    "trials run",
)


@dataclass(frozen=True)
class ProblemReport:
    """All samplers on one table or one kind of device.

    Attributes:
        is_recorded: Measured on a real model, not made up.
        facts: What was searched, in one line.
        notes: What a reader must know beside, one sentence each.
    """

    name: str
    is_recorded: bool
    facts: str
    notes: tuple[str, ...]
    summaries: Mapping[str, Summary]
    curves: Mapping[str, RegretCurve]


def report_text(reports: Sequence[ProblemReport]) -> str:
    """One section per problem."""
    return "\n".join(_section(report) for report in reports)


def paste(page: Path, section: str, text: str) -> None:
    """Replaces what stands between a page's two markers of a section.

    Raises:
        UserError: The page has no such markers.
    """
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    try:
        content = page.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{page} cannot be read: {error.strerror}; name a page that can") from error
    before, found_begin, rest = content.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise UserError(f"{page} lacks the lines {begin} and {end}, one after the other; add them where it belongs")
    write_whole(page, f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def _section(report: ProblemReport) -> str:
    rows = [_HEADER, tuple("---" for _ in _HEADER), *(_row(*entry) for entry in report.summaries.items())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "".join(f"{note}\n\n" for note in report.notes)
    return f"### {report.name}\n\n{report.facts}\n\n{notes}{table}\n"


def _row(sampler: str, summary: Summary) -> tuple[str, ...]:
    return (
        sampler,
        _pair(summary.to_best, _count),
        _pair(summary.regret_at_end, _share),
        f"{summary.over_cap:.1f}",
        " / ".join(_share(share) for share in summary.covered),
        _pair(summary.to_front, _count),
        "" if summary.time_error is None else _share(summary.time_error),
        "" if summary.in_interval is None else f"{summary.in_interval:.0%}",
        _count(summary.num_trials),
    )


def _pair(pair: tuple[float, float], say: object) -> str:
    """Median and 95th percentile."""
    assert callable(say)
    return f"{say(pair[0])} ({say(pair[1])})"


def _count(number: float) -> str:
    return "-" if math.isinf(number) else f"{number:g}"


def _share(ratio: float) -> str:
    return "-" if math.isinf(ratio) else f"{100 * ratio:.1f} %"
