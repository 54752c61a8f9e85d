"""A page with the timelines of a few steps on the same scales; it opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runners.step_timeline.records import KeptTensor, TracedStep
from tuner.memory_size import format_bytes
from tuner.report.figure import PageFigure, page_figure
from tuner.report.page import render
from tuner.timeline.data import OUTSIDE, REST, TimelineData, TimelineScales, common_scales, timeline_data
from tuner.timeline.figure import PHASE_HUES, draw_timeline, figure_height_px
from tuner.timeline.text import group_rows, group_titles, timeline_sentences

_HOW_TO_READ = (
    "Each bar is one tensor that is kept for backward, from the moment its memory is allocated to its last use; where "
    "the memory is given back later, a paler end follows. Hatched bars were made by a rebuild, dotted ones wait on the "
    "host. Above them is memory in use: grey was there before the step, blue is kept for backward, the line is all "
    "that is alive. Parameters, buffers and inputs that operators keep are in the table only: they are alive all the "
    "time, whatever is kept."
)


@dataclass(frozen=True)
class StepSection:
    """One step on the page.

    Attributes:
        figure: None where the step has no trace.
        kinds: Name and fill of each kind of bar.
        phases: Name and fill of each part of the step that occurs.
        titles: Of the columns of ``rows``.
        tensors: Facts of every tensor, row by row.
    """

    title: str
    sentences: tuple[str, ...]
    figure: PageFigure | None
    height_px: int
    kinds: tuple[tuple[str, str], ...]
    phases: tuple[tuple[str, str], ...]
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tensors: tuple[tuple[str, ...], ...]


def timeline_html(
    study: str, steps: Sequence[TracedStep], *, num_blocks: int | None, beside: Sequence[TracedStep] = ()
) -> str:
    """The page.

    Args:
        num_blocks: Blocks of each list that are told apart in the tables; None tells all.
        beside: Steps that are drawn elsewhere, on the same scales.
    """
    data = {id(step): timeline_data(step) for step in (*steps, *beside) if step.failure is None}
    scales = common_scales(list(data.values())) if data else None
    return render(
        "timeline.html",
        study=study,
        sections=[_section(step, data.get(id(step)), scales, num_blocks) for step in steps],
        how_to_read=_HOW_TO_READ,
        num_blocks=num_blocks,
    )


def _section(
    step: TracedStep, data: TimelineData | None, scales: TimelineScales | None, num_blocks: int | None
) -> StepSection:
    figure = None
    if data is not None and scales is not None:
        figure = page_figure(draw_timeline(data, scales), caption="")
    happened = dict.fromkeys(span.phase for span in step.phases)
    rows = [] if data is None else group_rows(step, num_blocks)
    titles = group_titles(rows)
    return StepSection(
        title=f"{'With the policy' if step.policy.recomputes else 'Plain'}: {step.policy.summary()}",
        sentences=tuple(timeline_sentences(step)),
        figure=figure,
        height_px=0 if data is None else figure_height_px(data),
        kinds=() if data is None else data.kinds,
        phases=tuple((phase, hue) for phase, hue in PHASE_HUES.items() if phase in happened),
        titles=titles,
        rows=tuple(row.cells()[: len(titles)] for row in rows),
        tensors=tuple(map(_tensor_row, step.tensors)),
    )


def _tensor_row(tensor: KeptTensor) -> tuple[str, ...]:
    first = tensor.savers[0] if tensor.savers else None
    savers = "; ".join(f"{saver.module or 'the model'}: {saver.operator}" for saver in tensor.savers)
    return (
        OUTSIDE if tensor.block is None else tensor.block,
        "" if tensor.block is None else tensor.unit or REST,
        tensor.kind.value,
        savers or tensor.made_by or "",
        "" if first is None else f"{list(first.shape)} {first.dtype}",
        format_bytes(tensor.num_bytes),
        _ms(tensor.birth_s),
        _ms(min((saver.saved_s for saver in tensor.savers), default=None)),
        _ms(tensor.last_use_s),
        _ms(tensor.freed_s),
    )


def _ms(time_s: float | None) -> str:
    return "" if time_s is None else f"{1000 * time_s:.2f}"
