"""What each block and unit costs, measured once for a study and within a small part of its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from runners.base import TrialRunner
from runners.diagnosis.records import DiagnosisSpec, UnitCost
from runners.diagnosis.unit_effort import least_seconds
from runners.trial import TrialResult
from search_spaces.choices import SearchChoices
from tuner import assemble
from tuner.config import SearchConfig

#: Share of the study's time limit that measuring may take; starting its process comes on top.
_TIME_SHARE = 0.03
#: Seconds above which more repetitions would tell little.
_MOST_S = 60.0
#: Seconds that a process may take to start and to build the model before measuring is given up.
_START_S = 60.0


def measure_unit_costs(
    runner: TrialRunner, config: SearchConfig, choices: SearchChoices, measured: Iterable[TrialResult]
) -> tuple[UnitCost, ...] | str:
    """The costs at those micro-batch sizes for which there is time, or why there are none, in one line.

    Nothing else may be in flight: neighbours would disturb one another.

    Args:
        measured: The trials that ran, at least one. Larger micro-batch sizes than theirs are left out, say for want
            of memory.
    """
    if not choices.block_lists:
        return "the model has no blocks"
    forwards_s = _forward_times(measured)
    sizes = tuple(size for size in choices.micro_batch_sizes if size <= max(forwards_s))
    choices = replace(choices, micro_batch_sizes=sizes)
    budget_s = min(_TIME_SHARE * config.search.time_limit_s, _MOST_S)
    # A process would take seconds to start and to find out the same.
    if least_seconds(choices, lambda size: _least_forward_s(size, forwards_s)) > budget_s:
        return _no_time_text(budget_s)
    answer = runner.diagnosis(
        DiagnosisSpec(
            workload=assemble.workload_spec(config),
            choices=choices,
            only_unit_costs=True,
            budget_s=budget_s,
            timeout_s=min(2 * budget_s + _START_S, config.runner.trial_timeout_s),
        )
    )
    if answer.failure is not None:
        return answer.failure
    if not answer.unit_costs:
        return _no_time_text(budget_s)
    return answer.unit_costs


def _forward_times(measured: Iterable[TrialResult]) -> dict[int, float]:
    """Seconds of the quickest forward pass of one micro-batch, by its size; 0 where none was timed."""
    times_s: dict[int, list[float]] = defaultdict(list)
    for trial in measured:
        batch = trial.policy.batch
        times_s[batch.micro_batch_size].append((trial.forward_time_s or 0.0) / batch.gradient_accumulation_steps)
    return {size: min(of_size) for size, of_size in times_s.items()}


def _least_forward_s(size: int, forwards_s: Mapping[int, float]) -> float:
    """As timed, else no less than at a smaller size and no less than its share of a larger one."""
    if size in forwards_s:
        return forwards_s[size]
    of_smaller = [seconds for other, seconds in forwards_s.items() if other < size]
    shares = [seconds * size / other for other, seconds in forwards_s.items() if other > size]
    return max([*of_smaller, min(shares, default=0.0)])


def _no_time_text(budget_s: float) -> str:
    """Nothing was measured: where the limit comes from, and what to do."""
    text = f"no micro-batch size could be measured within {budget_s:.1f} s"
    if budget_s < _MOST_S:
        text += f", {_TIME_SHARE:.0%} of search.time_limit; raise it, or see `tune check`"
    else:
        text += ", the most that a search gives to it; see `tune check`"
    return text
