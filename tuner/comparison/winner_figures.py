"""What the two winners measured, row by row. A row that neither study has is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from search_spaces.policy import RecomputePolicy
from tuner.comparison.placements import num_recompute_regions, num_recomputed_blocks
from tuner.comparison.records import Figure, Form
from tuner.comparison.setup_facts import fact_text, search_value
from tuner.results import StudyResults, TrialRecord
from tuner.summary import ratio_text, speed_against, spread_ratio


class Winner(NamedTuple):
    """A study with its best trial and that trial's policy."""

    results: StudyResults
    trial: TrialRecord
    policy: RecomputePolicy


def winner_figures(a: Winner, b: Winner) -> tuple[Figure, ...]:
    """The rows in the order that a person reads them."""
    rows = (Figure(name=row.name, form=row.form, a=row.of(a), b=row.of(b)) for row in _ROWS)
    return tuple(row for row in rows if row.a is not None or row.b is not None)


class _Row(NamedTuple):
    name: str
    form: Form
    of: Callable[[Winner], Any]


def _measured(name: str, form: Form) -> _Row:
    return _Row(name, form, lambda winner: getattr(winner.trial, name))


def _memory(kind: str) -> _Row:
    def of(winner: Winner) -> Any:
        return None if winner.trial.memory_bytes is None else getattr(winner.trial.memory_bytes, kind)

    return _Row(f"memory_bytes.{kind}", "bytes", of)


def _collectives(kind: str, *, recompute: bool = False) -> tuple[_Row, ...]:
    """Calls and bytes, and where it can add some what recompute adds; nothing of a kind that neither started."""

    def figure(name: str) -> Callable[[Winner], Any]:
        def of(winner: Winner) -> Any:
            communication = winner.trial.communication
            counted = None if communication is None else getattr(communication, kind)
            return None if counted is None or not counted.calls else getattr(counted, name)

        return of

    added = "calls_added_by_recompute"
    return (
        _Row(f"communication.{kind}.calls", "count", figure("calls")),
        _Row(f"communication.{kind}.bytes", "bytes", figure("bytes")),
        *([_Row(f"communication.{kind}.{added}", "count", figure(added))] if recompute else ()),
    )


def _resharding(winner: Winner) -> str | None:
    if search_value(winner.results, "runner", "strategy") != "fsdp2":
        return None
    return "no" if winner.policy.reshard_after_forward is False else "yes"


def _recomputed_blocks(winner: Winner) -> str:
    budget = winner.policy.compile_memory_budget
    if budget is not None:
        return f"left to the compiler, which may keep {budget:.0%} of the activations"
    return f"{num_recomputed_blocks(winner.policy)} of {sum(p.num_blocks for p in winner.results.model.block_lists)}"


def _rng_handling(winner: Winner) -> str:
    if winner.policy.is_plain:
        return "nothing is recomputed"
    if not winner.policy.recomputes:
        return "left to the compiler"
    return "preserved" if winner.policy.preserve_rng_state else "not preserved"


def _dropout(winner: Winner) -> str | None:
    """What model.args say of dropout; None where they say nothing."""
    args = search_value(winner.results, "model", "args")
    named = {name: value for name, value in args.items() if "drop" in str(name)} if isinstance(args, dict) else {}
    return ", ".join(f"{name} {fact_text(value)}" for name, value in named.items()) or None


def _share_of_cap(winner: Winner) -> float | None:
    peak = winner.trial.peak_memory_bytes
    return None if peak is None else peak / winner.results.memory_cap_bytes


def recompute_share(trial: TrialRecord) -> float | None:
    """Recompute time over the time of the step; None where it was not measured."""
    if trial.recompute_time_s is None or not trial.step_time_s:
        return None
    return trial.recompute_time_s / trial.step_time_s


def _against_baseline(winner: Winner) -> str | None:
    ratio = speed_against(winner.results, winner.trial, winner.results.baseline)
    return None if ratio is None else ratio_text(ratio)


def _verdict(winner: Winner) -> str | None:
    return None if winner.trial.verification is None else winner.trial.verification.verdict.value


_ROWS = (
    _measured("number", "text"),
    _measured("policy_summary", "text"),
    _measured("micro_batch_size", "count"),
    _measured("gradient_accumulation_steps", "count"),
    _Row("recomputed_blocks", "text", _recomputed_blocks),
    _Row("recompute_regions", "count", lambda winner: num_recompute_regions(winner.policy)),
    _measured("recomputed_flops_ratio", "share"),
    _Row("rng_state", "text", _rng_handling),
    _Row("dropout in model.args", "text", _dropout),
    _Row("memory_cap_bytes", "bytes", lambda winner: winner.results.memory_cap_bytes),
    _measured("peak_memory_bytes", "bytes"),
    _Row("share_of_cap", "share", _share_of_cap),
    *map(_memory, ("parameters", "gradients", "optimizer_states", "buffers", "activations", "temporary")),
    _Row("reshard_after_forward", "text", _resharding),
    *_collectives("all_gather", recompute=True),
    *(row for kind in ("reduce_scatter", "all_reduce", "point_to_point", "other") for row in _collectives(kind)),
    _measured("tokens_per_second", "rate"),
    _measured("samples_per_second", "rate"),
    _measured("step_time_s", "seconds"),
    _Row("spread", "share", lambda winner: spread_ratio(winner.trial)),
    _measured("forward_time_s", "seconds"),
    _measured("backward_time_s", "seconds"),
    _measured("recompute_time_s", "seconds"),
    _measured("optimizer_time_s", "seconds"),
    _Row("recompute_share", "share", lambda winner: recompute_share(winner.trial)),
    _measured("reference_step_time_s", "seconds"),
    _Row("speed_over_baseline", "text", _against_baseline),
    _Row("verdict", "text", _verdict),
    _measured("device", "text"),
    _Row("num_trials", "count", lambda winner: len(winner.results.trials)),
    _Row("stop_reason", "text", lambda winner: winner.results.stop_reason),
)
