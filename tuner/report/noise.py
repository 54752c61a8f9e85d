"""How noisy the measurements were, whether the machine changed its speed, and what the playoff made of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from tuner.hover_text import hover_text
from tuner.report.figure import PageFigure, page_figure
from tuner.results import StudyResults, TrialRecord
from tuner.speed_ratio import Playoff
from tuner.step_time_text import format_step_time
from tuner.summary import ratio_text, spread_ratio

#: So many points a line can show on a wide screen.
_MAX_LINE_POINTS = 500
#: So many whole numbers have room below a narrow figure.
_FEW_TRIALS = 10


@dataclass(frozen=True)
class PlayoffRow:
    """One trial of the playoff, in words.

    Attributes:
        winner_ratio: How many times as fast the winner was; empty for the winner.
        outcome: ``winner``, ``tie``, ``slower`` or ``faster``, and why a faster one did not win.
    """

    number: int
    policy: str
    step_time: str
    winner_ratio: str
    outcome: str


def noise_facts(results: StudyResults) -> list[tuple[str, str]]:
    """Steps, spread and drift over all trials, in words; empty where nothing was measured."""
    steps = [trial.num_steps for trial in results.trials if trial.num_steps is not None]
    spreads = {trial.number: spread for trial in results.trials if (spread := spread_ratio(trial)) is not None}
    reference_s = {t.number: t.reference_step_time_s for t in results.trials if t.reference_step_time_s}
    facts = []
    if steps:
        facts.append(("steps per trial", f"{statistics.median(steps):g} in the median, {min(steps)} to {max(steps)}"))
    if spreads:
        worst = max(spreads, key=lambda number: spreads[number])
        median = statistics.median(spreads.values())
        facts.append(
            ("spread of a trial's speed", f"{median:.1%} in the median, {spreads[worst]:.1%} at most (trial {worst})")
        )
    if len(reference_s) > 1:
        fast, slow = min(reference_s.values()), max(reference_s.values())
        facts.append(
            (
                "the reference's step",
                f"{format_step_time(fast)} to {format_step_time(slow)}: a factor of {slow / fast:.2f}",
            )
        )
    return facts


def drift_figure(trials: Sequence[TrialRecord]) -> PageFigure | None:
    """The reference's step time from trial to trial; None where it was timed beside less than two."""
    timed = [trial for trial in trials if trial.reference_step_time_s]
    if len(timed) < 2:
        return None
    drawn = _thinned(timed)
    times_s = [trial.reference_step_time_s or 0.0 for trial in drawn]
    unit, per_second = ("ms", 1000) if max(times_s) < 1 else ("s", 1)
    hovers = [
        (f"trial {t.number}", f"reference step {format_step_time(t.reference_step_time_s or 0)}", t.started_at or "")
        for t in drawn
    ]
    figure = _over_trials(drawn, [time_s * per_second for time_s in times_s], hovers, f"reference step ({unit})")
    figure.update_traces(mode="lines+markers", line={"color": "var(--front)", "width": 2})
    return page_figure(
        figure,
        caption=(
            "The same fixed steps, timed beside each trial. Where the line rises, the machine was slower; trials are "
            "ranked by their speed relative to it."
        ),
    )


def spread_figure(results: StudyResults) -> PageFigure | None:
    """Each trial's standard error in per cent of its speed, and the spread that was asked for; None without any."""
    drawn = _thinned([trial for trial in results.trials if spread_ratio(trial) is not None])
    if not drawn:
        return None
    spreads_pct = [100 * (spread_ratio(trial) or 0.0) for trial in drawn]
    hovers = [
        (t.policy_summary, f"+-{pct:.2f} % after {t.num_steps or '?'} steps", f"trial {t.number}")
        for t, pct in zip(drawn, spreads_pct, strict=True)
    ]
    figure = _over_trials(drawn, spreads_pct, hovers, "spread (% of speed)")
    figure.update_traces(mode="markers")
    wanted = results.search.get("measurement", {}).get("relative_spread")
    if isinstance(wanted, (int, float)):
        figure.add_hline(y=100 * wanted, line={"color": "var(--cap)", "width": 1, "dash": "dash"})
    line = " The dashed line is the spread that was asked for." if isinstance(wanted, (int, float)) else ""
    return page_figure(figure, caption=f"The standard error of each trial's speed.{line}")


def playoff_rows(results: StudyResults) -> list[PlayoffRow]:
    """The playoff's trials, the fastest first; empty where there was none."""
    playoff, winner = results.playoff, results.best_trial()
    if playoff is None or winner is None or winner.number not in playoff.trials:
        return []
    medians_s = {n: statistics.median(t) for n, t in zip(playoff.trials, playoff.step_times_s, strict=True)}
    return [
        _playoff_row(playoff, trial, winner, medians_s[number])
        for number in sorted(medians_s, key=lambda number: medians_s[number])
        if (trial := results.trial(number)) is not None
    ]


def _playoff_row(playoff: Playoff, trial: TrialRecord, winner: TrialRecord, step_time_s: float) -> PlayoffRow:
    ratio = playoff.ratio(winner.number, trial.number)
    assert ratio is not None, "both took part"
    if trial.number == winner.number:
        text, outcome = "", "winner"
    else:
        text = ratio_text(ratio)
        outcome = "tie: no difference beyond the spread" if ratio.is_tie else "slower" if ratio.value > 1 else "faster"
        if not trial.feasible:
            outcome += f"; not feasible: {trial.infeasible_reason}"
        elif outcome == "faster":
            outcome += ", but the winner ties with the fastest and takes less memory or is simpler"
    return PlayoffRow(trial.number, trial.policy_summary, format_step_time(step_time_s), text, outcome)


def _over_trials(
    trials: Sequence[TrialRecord], values: Sequence[float], hovers: Sequence[tuple[str, ...]], title: str
) -> go.Figure:
    figure = go.Figure(
        go.Scatter(
            x=[trial.number for trial in trials],
            y=list(values),
            text=[hover_text([line for line in lines if line]) for lines in hovers],
            hoverinfo="text",
            marker={"color": "var(--front)", "size": 7},
        )
    )
    figure.update_layout(showlegend=False, hovermode="closest", margin={"l": 60, "r": 20, "t": 10, "b": 50})
    # Of a few trials plotly would mark halves.
    few = {"tick0": 0, "dtick": 1} if max(trial.number for trial in trials) < _FEW_TRIALS else {}
    figure.update_xaxes(title="trial", rangemode="tozero", tickformat=",d", **few)
    figure.update_yaxes(title=title, rangemode="tozero")
    return figure


def _thinned(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """All of them, or of thousands every so many-th and the slowest of those between."""
    stride = -(-len(trials) // _MAX_LINE_POINTS)
    if stride < 2:
        return list(trials)
    stretches = (trials[start : start + stride] for start in range(0, len(trials), stride))
    return [max(stretch, key=lambda trial: trial.reference_step_time_s or 0.0) for stretch in stretches]
