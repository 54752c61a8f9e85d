"""What the memory of a step is made of at its peak, for the trials that a reader compares."""

from __future__ import annotations

from runners.trial import MemoryByKind
from tuner.memory_size import format_bytes
from tuner.predicted_text import measured_peak
from tuner.report.stacked_bars import BarContent, Part, StackedBars, stack_bars
from tuner.report.telling_trials import compared_and_front
from tuner.results import StudyResults, TrialRecord
from tuner.summary import StudySummary

#: What no placement changes first, so that the bars differ at their ends.
_HUES = {
    "parameters": "sky",
    "gradients": "green",
    "optimizer_states": "rose",
    "buffers": "teal",
    "activations": "amber",
    "temporary": "yellow",
}


def memory_split(results: StudyResults, summary: StudySummary) -> StackedBars | None:
    """Bars of the kinds of memory with the cap as a line; None where no such trial has them."""
    contents = [
        BarContent(telling.numbered_title, telling.trial.policy_summary, measured_peak(telling.trial), parts)
        for telling in compared_and_front(results, summary)
        if (parts := _parts(telling.trial))
    ]
    if not contents:
        return None
    cap = results.memory_cap_bytes
    return stack_bars(contents, text=_text, mark=float(cap), mark_label=f"cap {format_bytes(cap)}")


def _parts(trial: TrialRecord) -> tuple[Part, ...]:
    memory = trial.memory_bytes
    if memory is None:
        return ()
    # An accelerator's cap is tested against what its allocator reserved, which is more than the tensors in it.
    rest = (trial.peak_memory_bytes or 0) - sum(_bytes(memory, kind) for kind in _HUES)
    kinds = (Part(kind.replace("_", " "), hue, float(_bytes(memory, kind))) for kind, hue in _HUES.items())
    return (*kinds, Part("reserved, not in use", "none", float(max(rest, 0))))


def _bytes(memory: MemoryByKind, kind: str) -> int:
    value: int = getattr(memory, kind)
    return value


def _text(num_bytes: float) -> str:
    return format_bytes(round(num_bytes))
