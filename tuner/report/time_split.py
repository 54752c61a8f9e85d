"""Where the time of an optimizer step goes, for the trials that a reader compares."""

from __future__ import annotations

from tuner.report.stacked_bars import BarContent, Part, StackedBars, stack_bars
from tuner.report.telling_trials import compared_and_front
from tuner.results import StudyResults, TrialRecord
from tuner.step_time_text import format_step_time
from tuner.summary import StudySummary

#: What the four parts leave of a step is shown from here on; less is the medians' own imprecision.
_NOTABLE_REST_RATIO = 0.01


def time_split(results: StudyResults, summary: StudySummary) -> StackedBars | None:
    """Bars of forward, backward, recompute and optimizer; None where no such trial has them."""
    contents = [
        BarContent(telling.numbered_title, telling.trial.policy_summary, _total(telling.trial), parts)
        for telling in compared_and_front(results, summary)
        if (parts := _parts(telling.trial))
    ]
    return stack_bars(contents, text=format_step_time) if contents else None


def _total(trial: TrialRecord) -> str:
    return "" if trial.step_time_s is None else format_step_time(trial.step_time_s)


def _parts(trial: TrialRecord) -> tuple[Part, ...]:
    times_s = (trial.forward_time_s, trial.backward_time_s, trial.optimizer_time_s)
    if any(time_s is None for time_s in times_s):
        return ()
    forward_s, backward_s, optimizer_s = (time_s or 0.0 for time_s in times_s)
    recompute_s = trial.recompute_time_s or 0.0
    rest_s = (trial.step_time_s or 0.0) - forward_s - backward_s - recompute_s - optimizer_s
    is_notable = rest_s > _NOTABLE_REST_RATIO * (trial.step_time_s or 0.0)
    return (
        Part("forward", "sky", forward_s),
        Part("backward", "green", backward_s),
        Part("recompute", "amber", recompute_s),
        Part("optimizer", "rose", optimizer_s),
        Part("the rest of the step", "none", rest_s if is_notable else 0.0),
    )
