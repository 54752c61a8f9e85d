"""The stages of a pipeline, in words."""

from __future__ import annotations

from runners.trial import TrialResult
from tuner.memory_size import format_bytes
from tuner.results import TrialRecord


def stages_text(trial: TrialResult | TrialRecord) -> str | None:
    """``stage 0: peak 9.5 MiB, 2 micro-batches in flight; stage 1: peak 8.1 MiB, 1``; None without stages."""
    peaks, in_flight = trial.stage_peak_memory_bytes, trial.stage_micro_batches
    if peaks is None or in_flight is None:
        return None
    (first, first_count), *others = zip(peaks, in_flight, strict=True)
    return "; ".join(
        [
            f"stage 0: peak {format_bytes(first)}, {first_count} micro-batches in flight",
            *(f"stage {n}: peak {format_bytes(peak)}, {count}" for n, (peak, count) in enumerate(others, start=1)),
        ]
    )
