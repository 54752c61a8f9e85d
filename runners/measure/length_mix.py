"""Several sequence lengths: one measurement is a cycle, a whole optimizer step at each length; figures are per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runners.measure.step_time import PhaseTimes, StepTimes
from runners.measure.training_step import TrainingStep


def run_in_turn(step: TrainingStep, steps: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Takes one cycle.

    Args:
        steps: Micro-batches of the optimizer step at each length.
    """
    for micro_batches in steps:
        step.run(micro_batches)


def mean_over_lengths(cycles: StepTimes, num_lengths: int) -> StepTimes:
    """The mean step of each measured cycle.

    Args:
        cycles: Times of whole cycles, those of the reference included.
        num_lengths: Steps of one cycle.
    """
    if num_lengths == 1:
        return cycles
    phases = cycles.phases
    return replace(
        cycles,
        step_times_s=tuple(time_s / num_lengths for time_s in cycles.step_times_s),
        reference_times_s=tuple(time_s / num_lengths for time_s in cycles.reference_times_s),
        phases=PhaseTimes(
            forward_s=phases.forward_s / num_lengths,
            backward_s=phases.backward_s / num_lengths,
            recompute_s=phases.recompute_s / num_lengths,
            optimizer_s=phases.optimizer_s / num_lengths,
        ),
    )
