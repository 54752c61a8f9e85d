"""Trials as tables for a terminal: the data are in summary.py, only the drawing is here."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from tuner.memory_size import format_bytes
from tuner.predicted_text import measured_peak, measured_step_time, predicted_peak, predicted_step_time
from tuner.results import StudyResults, TrialRecord
from tuner.summary import StudySummary, ratio_text, speed_against, spread_ratio


def front_table(results: StudyResults, summary: StudySummary) -> Table:
    """The baseline, recompute of everything and the front, fastest first, the winner marked."""
    table = Table(title=f"{results.study}: fastest within {format_bytes(results.memory_cap_bytes)}", title_style="bold")
    table.add_column("trial", justify="right")
    table.add_column("what")
    table.add_column("policy", overflow="fold")
    table.add_column(_throughput_title(results.trials), justify="right")
    table.add_column("spread", justify="right")
    table.add_column("x baseline", justify="right")
    table.add_column("peak", justify="right")
    table.add_column("of cap", justify="right")
    table.add_column("proof")
    for trial, role in _rows(results, summary):
        style = "bold" if trial.is_best else ("" if trial.feasible else "dim")
        table.add_row(*_cells(trial, role, results, summary), style=style)
    return table


def trials_table(results: StudyResults) -> Table:
    """Every trial in order of number, with what became of it."""
    table = Table(title=f"{results.study}: all trials", title_style="bold")
    for title, justify in (("trial", "right"), ("status", "left"), ("policy", "left")):
        table.add_column(title, justify="right" if justify == "right" else "left", overflow="fold")
    table.add_column(_throughput_title(results.trials), justify="right")
    is_predicted = any(trial.predicted_peak_memory_bytes is not None for trial in results.trials)
    for title in ("step", "predicted", "peak", "predicted") if is_predicted else ("step", "peak"):
        table.add_column(title, justify="right")
    table.add_column("proof")
    table.add_column("why not")
    for trial in results.trials:
        table.add_row(
            str(trial.number),
            trial.status.value,
            Text(trial.policy_summary),
            _throughput(trial),
            measured_step_time(trial),
            *([predicted_step_time(trial)] if is_predicted else []),
            measured_peak(trial),
            *([predicted_peak(trial)] if is_predicted else []),
            "" if trial.verification is None else trial.verification.verdict.value,
            Text(trial.infeasible_reason or ""),
            style="bold" if trial.is_best else "",
        )
    return table


def _rows(results: StudyResults, summary: StudySummary) -> Iterable[tuple[TrialRecord, str]]:
    roles: dict[int, list[str]] = {}
    rows: list[TrialRecord] = []
    named = (
        (summary.baseline, "baseline"),
        (summary.recompute_all, "every block"),
        (summary.best_plain, "plain, fits"),
    )
    for trial, role in named:
        if trial is not None:
            roles.setdefault(trial.number, []).append(role)
            rows.append(trial)
    for trial in results.front_trials():
        roles.setdefault(trial.number, []).append("BEST" if trial.is_best else "front")
        rows.append(trial)
    shown: set[int] = set()
    for trial in rows:
        if trial.number not in shown:
            shown.add(trial.number)
            yield trial, ", ".join(roles[trial.number])


def _cells(trial: TrialRecord, role: str, results: StudyResults, summary: StudySummary) -> list[str | Text]:
    spread = spread_ratio(trial)
    ratio = speed_against(results, trial, summary.baseline)
    peak = trial.peak_memory_bytes
    return [
        str(trial.number),
        role,
        Text(trial.policy_summary),
        _throughput(trial),
        "" if spread is None else f"+-{spread:.1%}",
        "" if ratio is None else ratio_text(ratio),
        trial.status.value if peak is None else format_bytes(peak),
        "" if peak is None else f"{peak / results.memory_cap_bytes:.0%}",
        "" if trial.verification is None else trial.verification.verdict.value,
    ]


def _throughput_title(trials: Iterable[TrialRecord]) -> str:
    return "tokens/s" if any(trial.tokens_per_second is not None for trial in trials) else "samples/s"


def _throughput(trial: TrialRecord) -> str:
    if trial.tokens_per_second is not None:
        return f"{trial.tokens_per_second:,.0f}"
    return "" if trial.samples_per_second is None else f"{trial.samples_per_second:,.4g}"
