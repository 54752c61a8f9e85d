"""The winner beside what one would do without a search, quantity by quantity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.memory_size import format_bytes
from tuner.report.telling_trials import TellingTrial, compared_trials
from tuner.results import StudyResults, TrialRecord
from tuner.speed_ratio import Ratio
from tuner.step_time_text import format_step_time
from tuner.summary import StudySummary, ratio_text, speed_against, throughput_text


@dataclass(frozen=True)
class ComparisonRow:
    """One quantity of each trial; what was not measured is empty."""

    title: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Attributes:
    titles: What each trial stands for, in the order of each row's values.
    """

    titles: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]


def compare_trials(results: StudyResults, summary: StudySummary) -> Comparison | None:
    """The winner, plain training that fits, every block and the baseline; None where none of them was tried."""
    trials = compared_trials(summary)
    if not trials:
        return None
    rows = [
        _row("trial", trials, lambda trial: str(trial.number)),
        _row("policy", trials, lambda trial: trial.policy_summary),
        *_speed_ratios(results, summary, trials),
        _row("throughput", trials, _throughput),
        _row("peak", trials, lambda trial: _peak(trial, results.memory_cap_bytes)),
        _row("step", trials, lambda trial: _time(trial.step_time_s)),
        _row("forward", trials, lambda trial: _time(trial.forward_time_s)),
        _row("backward, without recompute", trials, lambda trial: _time(trial.backward_time_s)),
        _row("recompute", trials, lambda trial: _time(trial.recompute_time_s)),
        _row("optimizer", trials, lambda trial: _time(trial.optimizer_time_s)),
        _row("FLOPs added by recompute", trials, lambda trial: _percent(trial.recomputed_flops_ratio)),
        _row("MFU", trials, lambda trial: _percent(trial.mfu)),
        _row("HFU", trials, lambda trial: _percent(trial.hfu)),
        _row("proof", trials, _proof),
        _row("feasible", trials, lambda trial: "yes" if trial.feasible else f"no: {trial.infeasible_reason}"),
    ]
    return Comparison(tuple(trial.title for trial in trials), tuple(row for row in rows if any(row.values)))


def _row(title: str, trials: Sequence[TellingTrial], value: Callable[[TrialRecord], str]) -> ComparisonRow:
    return ComparisonRow(title, tuple(value(telling.trial) for telling in trials))


def _speed_ratios(
    results: StudyResults, summary: StudySummary, trials: Sequence[TellingTrial]
) -> Sequence[ComparisonRow]:
    winner = summary.winner
    if winner is None:
        return ()
    rows = [_row("winner's speed against it", trials, lambda trial: _against(results, winner, trial))]
    if summary.baseline is not None:
        baseline = summary.baseline
        rows.append(_row("speed, baseline = 1", trials, lambda trial: _text(speed_against(results, trial, baseline))))
    return rows


def _against(results: StudyResults, winner: TrialRecord, other: TrialRecord) -> str:
    if other.number == winner.number:
        return ""
    ratio = speed_against(results, winner, other)
    if ratio is None:
        return ""
    return f"{ratio_text(ratio)} (tie)" if ratio.is_tie else ratio_text(ratio)


def _text(ratio: Ratio | None) -> str:
    return "" if ratio is None else ratio_text(ratio)


def _throughput(trial: TrialRecord) -> str:
    return "" if trial.samples_per_second is None else throughput_text(trial)


def _peak(trial: TrialRecord, cap_bytes: int) -> str:
    peak = trial.peak_memory_bytes
    return "" if peak is None else f"{format_bytes(peak)} ({peak / cap_bytes:.0%} of the cap)"


def _time(time_s: float | None) -> str:
    return "" if time_s is None else "0" if time_s == 0 else format_step_time(time_s)


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1%}"


def _proof(trial: TrialRecord) -> str:
    proof = trial.verification
    if proof is None:
        return "none"
    return f"{proof.verdict.value}: {proof.reason}" if proof.reason else proof.verdict.value
