"""report.html: the answer, the front and all trials on one page that opens without a network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from tuner import front_figure
from tuner.front_figure import FrontData, FrontTrial, draw_front, front_points
from tuner.memory_size import format_bytes
from tuner.predicted_text import measured_peak, measured_step_time, predicted_peak, predicted_step_time
from tuner.prediction_errors import ErrorFigures, PredictionErrors
from tuner.results import StudyResults, TrialRecord
from tuner.summary import StudySummary, throughput_text

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.3rem 0.7rem; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.best td { font-weight: bold; }
.scroll { overflow-x: auto; }
"""


def front_trials(results: StudyResults) -> list[FrontTrial]:
    """The study's trials as the figure of the front takes them."""
    return [
        FrontTrial(
            number=trial.number,
            status=trial.status.value,
            policy_summary=trial.policy_summary,
            micro_batch_size=trial.micro_batch_size,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            feasible=trial.feasible,
            on_front=trial.on_front,
            is_best=trial.is_best,
            samples_per_second=trial.samples_per_second,
            tokens_per_second=trial.tokens_per_second,
            relative_speed=trial.relative_speed,
            peak_memory_bytes=trial.peak_memory_bytes,
            verdict=trial.verification.verdict.value if trial.verification is not None else None,
            reason=trial.reason,
            is_baseline=trial.is_baseline,
        )
        for trial in results.trials
    ]


def front_html(results: StudyResults) -> str:
    """The front as a page of its own that one can hover over."""
    return front_figure.front_html(_front_data(results))


def report_html(results: StudyResults, summary: StudySummary) -> str:
    """The whole report."""
    figure = draw_front(_front_data(results))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{html.escape(results.study)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(results.study)}</h1>",
        *(f"<p>{html.escape(sentence)}</p>" for sentence in summary.sentences),
        _asked(results),
        "<h2>Speed and memory</h2>",
        str(figure.to_html(include_plotlyjs=True, full_html=False)),
        "<h2>All trials</h2>",
        _trials(results.trials),
        *_predictions(summary.prediction_errors),
        "<h2>Environment</h2>",
        _pairs(results.environment.items()),
        "</body></html>",
    ]
    return "\n".join(parts)


def _front_data(results: StudyResults) -> FrontData:
    return front_points(front_trials(results), memory_cap_bytes=results.memory_cap_bytes)


def _asked(results: StudyResults) -> str:
    model = results.model
    lists = "; ".join(f"{b.path}: {b.num_blocks} x {b.kind}" for b in model.block_lists) or "none found"
    stopped = f"Stopped because {results.stop_reason}." if results.stop_reason else ""
    return (
        f"<p>Asked: {html.escape(model.model_class)} with {model.num_parameters:,} parameters (blocks: "
        f"{html.escape(lists)}) within {format_bytes(results.memory_cap_bytes)}. {html.escape(stopped)}</p>"
    )


def _trials(trials: Sequence[TrialRecord]) -> str:
    titles = ("trial", "status", "policy", "throughput (spread)", "step", "predicted", "peak", "predicted")
    return _table((*titles, "proof", "note"), map(_trial_row, trials))


def _trial_row(trial: TrialRecord) -> str:
    cells = (
        ("number", str(trial.number)),
        ("", trial.status.value),
        ("", trial.policy_summary),
        ("number", "" if trial.samples_per_second is None else throughput_text(trial)),
        ("number", measured_step_time(trial)),
        ("number", predicted_step_time(trial)),
        ("number", measured_peak(trial)),
        ("number", predicted_peak(trial)),
        ("", "" if trial.verification is None else trial.verification.verdict.value),
        ("", "best" if trial.is_best else "on the front" if trial.on_front else trial.infeasible_reason or ""),
    )
    return _row(cells, kind="best" if trial.is_best else "")


def _predictions(errors: PredictionErrors) -> Iterable[str]:
    """How wrong predictions were; nothing where nothing was predicted."""
    rows = [_errors_row("peak memory", errors.peak), _errors_row("step time", errors.time)]
    if any(rows):
        yield "<h2>Predicted and measured</h2>"
        yield _table(("predicted", "trials", "median error", "largest error", "within the 90 % interval"), rows)


def _errors_row(what: str, figures: ErrorFigures | None) -> str:
    if figures is None:
        return ""
    inside = "" if figures.num_in_interval is None else f"{figures.num_in_interval} of {figures.num_trials}"
    texts = (str(figures.num_trials), f"{figures.median:.2%}", f"{figures.largest:.2%}", inside)
    return _row([("", what), *(("number", text) for text in texts)])


def _table(titles: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    return f"<div class='scroll'><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _row(cells: Iterable[tuple[str, str]], *, kind: str = "") -> str:
    row = "".join(f"<td class='{of_cell}'>{html.escape(text)}</td>" for of_cell, text in cells)
    return f"<tr class='{kind}'>{row}</tr>"


def _pairs(pairs: Iterable[tuple[str, object]]) -> str:
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in pairs)
    return f"<div class='scroll'><table>{rows}</table></div>"
