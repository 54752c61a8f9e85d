"""The pages: each section's data put into its template, with everything that the page needs inside it."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # plotly ships no types

from tuner.hover_text import shortened
from tuner.report.ablation import ablation_tables
from tuner.report.asked import asked_facts
from tuner.report.communication import communication_table
from tuner.report.comparison import compare_trials
from tuner.report.front import front_figure
from tuner.report.memory_split import memory_split
from tuner.report.noise import drift_figure, noise_facts, playoff_rows, spread_figure
from tuner.report.placement import block_strips, legend
from tuner.report.predictions import error_rows, peak_figure, step_time_figure
from tuner.report.stages import stages_view
from tuner.report.time_split import time_split
from tuner.report.trial_rows import trial_table
from tuner.results import StudyResults
from tuner.summary import StudySummary

#: The answer proper; what follows is detail.
_NUM_ANSWER_SENTENCES = 2
#: Of a policy within a sentence.
_MAX_POLICY_LENGTH = 160


def report_html(results: StudyResults, summary: StudySummary) -> str:
    """The whole report."""
    winner = summary.winner
    sentences = _readable(summary)
    strips = [] if winner is None else block_strips(winner.to_policy(), _budget_of_all(results))
    return render(
        "report.html",
        study=results.study,
        status=results.status,
        stop_reason=results.stop_reason,
        answer=sentences[:_NUM_ANSWER_SENTENCES],
        details=sentences[_NUM_ANSWER_SENTENCES:],
        asked=asked_facts(results),
        notes=results.model.notes,
        front=front_figure(results),
        comparison=compare_trials(results, summary),
        winner=winner,
        strips=strips,
        actions=legend(strips),
        ablation=ablation_tables(results.unit_costs),
        time_split=time_split(results, summary),
        memory_split=memory_split(results, summary),
        stages=stages_view(results, summary),
        communication=communication_table(results, summary),
        peak_figure=peak_figure(results.trials, results.memory_cap_bytes),
        step_time_figure=step_time_figure(results.trials),
        errors=error_rows(summary.prediction_errors),
        noise=noise_facts(results),
        drift=drift_figure(results.trials),
        spread=spread_figure(results),
        playoff=playoff_rows(results),
        num_rounds=0 if results.playoff is None else max(map(len, results.playoff.step_times_s), default=0),
        no_gain=[sentence for sentence in sentences if sentence.startswith("No meaningful gain")],
        trials=trial_table(results, summary),
        environment=[(name, str(value)) for name, value in results.environment.items()],
    )


def front_html(results: StudyResults) -> str:
    """The front as a page of its own that one can hover over."""
    return render("front.html", study=results.study, front=front_figure(results))


def _budget_of_all(results: StudyResults) -> float | None:
    """The compiler's memory budget in all trials; None without one, and where each policy has its own."""
    budget = results.search.get("model", {}).get("compile_memory_budget")
    return budget if isinstance(budget, int | float) else None


def _readable(summary: StudySummary) -> list[str]:
    """The sentences with long policies cut short, since the page draws them block by block."""
    named = [summary.winner, summary.best_plain, summary.recompute_all, summary.baseline]
    policies = [trial.policy_summary for trial in named if trial is not None]
    sentences = list(summary.sentences)
    for policy in sorted(policies, key=len, reverse=True):
        sentences = [sentence.replace(policy, shortened(policy, _MAX_POLICY_LENGTH)) for sentence in sentences]
    return sentences


def render(template: str, **content: object) -> str:
    """A page from one of the templates."""
    return _environment().get_template(template).render(plotly_js=_plotly_js(), **content)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tuner.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _plotly_js() -> Markup:
    """plotly's own script, about 5 MB: the page opens without a network."""
    return Markup(get_plotlyjs())
