"""What each block and unit costs, measured once for a study and within a small part of its time."""

from __future__ import annotations

from dataclasses import replace

from runners.base import TrialRunner
from runners.diagnosis.records import DiagnosisSpec, UnitCost
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
    runner: TrialRunner, config: SearchConfig, choices: SearchChoices, *, largest: int
) -> tuple[UnitCost, ...] | str:
    """The costs at those micro-batch sizes for which there is time, or why there are none, in one line.

    Nothing else may be in flight: neighbours would disturb one another.

    Args:
        largest: Micro-batch size above which nothing was measured, say for want of memory.
    """
    if not choices.block_lists:
        return "the model has no blocks"
    sizes = tuple(size for size in choices.micro_batch_sizes if size <= largest)
    budget_s = min(_TIME_SHARE * config.search.time_limit_s, _MOST_S)
    answer = runner.diagnosis(
        DiagnosisSpec(
            workload=assemble.workload_spec(config),
            choices=replace(choices, micro_batch_sizes=sizes),
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


def _no_time_text(budget_s: float) -> str:
    """Nothing was measured: where the limit comes from, and what to do."""
    text = f"no micro-batch size could be measured within {budget_s:.1f} s"
    if budget_s < _MOST_S:
        text += f", {_TIME_SHARE:.0%} of search.time_limit; raise it, or see `tune check`"
    else:
        text += ", the most that a search gives to it; see `tune check`"
    return text
