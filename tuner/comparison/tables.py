"""A comparison as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from tuner.comparison.records import BlockDifference, Comparison, Figure, Form, SharedPolicy
from tuner.comparison.setup_facts import fact_text
from tuner.memory_size import format_bytes
from tuner.speed_ratio import Ratio
from tuner.step_time_text import format_step_time
from tuner.summary import ratio_text

#: Policies measured in both that are listed; the JSON document has all of them.
_MAX_SHARED = 12

#: What people call a figure; others go by their own name.
_TITLES = {
    "number": "trial",
    "policy_summary": "policy",
    "micro_batch_size": "micro-batch",
    "gradient_accumulation_steps": "accumulation steps",
    "recomputed_blocks": "blocks recomputed",
    "recompute_regions": "recompute regions",
    "recomputed_flops_ratio": "FLOPs added by recompute",
    "rng_state": "RNG state in rebuilds",
    "memory_cap_bytes": "memory cap",
    "peak_memory_bytes": "peak memory",
    "share_of_cap": "  of the cap",
    "memory_bytes.parameters": "  parameters",
    "memory_bytes.gradients": "  gradients",
    "memory_bytes.optimizer_states": "  optimizer states",
    "memory_bytes.buffers": "  buffers",
    "memory_bytes.activations": "  activations",
    "memory_bytes.temporary": "  temporary",
    "reshard_after_forward": "blocks divided again after forward",
    "communication.all_gather.calls": "all-gathers per step",
    "communication.all_gather.bytes": "  bytes",
    "communication.all_gather.calls_added_by_recompute": "  added by recompute",
    "communication.reduce_scatter.calls": "reduce-scatters per step",
    "communication.reduce_scatter.bytes": "  bytes",
    "communication.all_reduce.calls": "all-reduces per step",
    "communication.all_reduce.bytes": "  bytes",
    "communication.point_to_point.calls": "sends and receives per step",
    "communication.point_to_point.bytes": "  bytes",
    "communication.other.calls": "other collectives per step",
    "communication.other.bytes": "  bytes",
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "step_time_s": "step",
    "spread": "  spread",
    "forward_time_s": "  forward",
    "backward_time_s": "  backward",
    "recompute_time_s": "  recompute",
    "optimizer_time_s": "  optimizer",
    "recompute_share": "  recompute's share",
    "reference_step_time_s": "reference step beside it",
    "speed_over_baseline": "speed x own baseline",
    "verdict": "proof",
    "num_trials": "trials of the search",
    "stop_reason": "why it ended",
}


def comparison_tables(comparison: Comparison) -> Iterator[Table]:
    """The tables in the order that a person reads them; those without a row are left out."""
    yield _winners(comparison)
    if comparison.blocks:
        yield _blocks(comparison, comparison.blocks)
    if comparison.measured_in_both:
        yield _shared(comparison)
    if comparison.differences:
        yield _differences(comparison)


def _sides(comparison: Comparison) -> tuple[str, str]:
    """What the two columns are called."""
    sides = comparison.a, comparison.b
    has_one_name = sides[0].study == sides[1].study
    first, second = (f"{side.study} ({side.folder})" if has_one_name else side.study for side in sides)
    return f"A: {first}", f"B: {second}"


def _winners(comparison: Comparison) -> Table:
    title = f"The best of each, at a global batch of {comparison.global_batch_size}"
    table = _table(title, "", *_sides(comparison))
    table.add_column("B / A", justify="right")
    for figure in comparison.figures:
        cells = (_text(figure.form, figure.a), _text(figure.form, figure.b), _quotient(figure))
        table.add_row(_TITLES.get(figure.name, figure.name), *map(Text, cells))
    return table


def _blocks(comparison: Comparison, blocks: tuple[BlockDifference, ...]) -> Table:
    table = _table("Where the placements differ", "blocks", *_sides(comparison))
    for run in blocks:
        where = f"{run.first}-{run.last}" if run.last > run.first else f"{run.first}"
        table.add_row(Text(f"{run.blocks} {where}"), Text(run.a), Text(run.b))
    return table


def _shared(comparison: Comparison) -> Table:
    entries = comparison.measured_in_both
    more = f" ({_MAX_SHARED} of {len(entries)}; --json has all)" if len(entries) > _MAX_SHARED else ""
    table = _table(f"Measured in both{more}", "policy", "best in")
    for title in ("step A", "step B", "speed B / A", "peak A", "peak B", "peak B / A"):
        table.add_column(title, justify="right")
    for entry in _most_telling(entries):
        table.add_row(
            Text(entry.policy),
            " and ".join(side.upper() for side in entry.best_in),
            format_step_time(entry.step_time_a_s),
            format_step_time(entry.step_time_b_s),
            ratio_text(Ratio(entry.speed_ratio.value, entry.speed_ratio.standard_error)),
            _peak(entry.peak_a_bytes, entry.feasible_a),
            _peak(entry.peak_b_bytes, entry.feasible_b),
            "" if entry.peak_ratio is None else f"{entry.peak_ratio:.2f}",
        )
    if any(not (entry.feasible_a and entry.feasible_b) for entry in entries):
        table.caption = "(peaks in brackets: not feasible there)"
        table.caption_justify = "left"
    return table


def _most_telling(entries: tuple[SharedPolicy, ...]) -> list[SharedPolicy]:
    """Those that won, then the fastest; in the order of the whole."""
    ranked = sorted(range(len(entries)), key=lambda index: (not entries[index].best_in, index))
    return [entries[index] for index in sorted(ranked[:_MAX_SHARED])]


#: Facts that have their own way to be written.
_FACTS: dict[str, Callable[[Any], str]] = {"memory_cap": format_bytes, "model.num_parameters": lambda n: f"{n:,}"}


def _differences(comparison: Comparison) -> Table:
    table = _table("What the studies do not share", "", *_sides(comparison))
    for fact in comparison.differences:
        show = _FACTS.get(fact.name, fact_text)
        table.add_row(Text(fact.name), Text(show(fact.a)), Text(show(fact.b)))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_style="bold", title_justify="left")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    return table


def _peak(peak_bytes: int | None, is_feasible: bool) -> str:
    text = "" if peak_bytes is None else format_bytes(peak_bytes)
    return text if is_feasible or not text else f"({text})"


def _text(form: Form, value: Any) -> str:
    return "" if value is None else _FORMS[form](value)


_FORMS: dict[Form, Callable[[Any], str]] = {
    "text": str,
    "count": str,
    "bytes": format_bytes,
    "seconds": lambda value: format_step_time(value) if value else "0",
    "share": lambda value: f"{value:.1%}",
    "rate": lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
}


def _quotient(figure: Figure) -> str:
    """Of amounts and rates, where both are above zero."""
    if figure.form not in ("bytes", "seconds", "rate") or not figure.a or not figure.b:
        return ""
    return f"{figure.b / figure.a:.2f}"
