"""What the ranks of a trial send each other in a step: the winner beside what it is compared with, and the front."""

from __future__ import annotations

from dataclasses import dataclass

from runners.parallel.records import CollectiveCount
from tuner.communication_text import COLLECTIVES
from tuner.memory_size import format_bytes
from tuner.report.telling_trials import TellingRow, TellingTrial, compared_and_front, telling_row
from tuner.results import StudyResults, TrialRecord
from tuner.summary import StudySummary

RESHARD = "whole after forward"
ADDED = "added by recompute"


@dataclass(frozen=True)
class CommunicationTable:
    """Attributes:
    about: How the ranks work together, in one sentence.
    columns: Kinds of collectives that some trial has, and what goes with them.
    """

    about: str
    columns: tuple[str, ...]
    rows: tuple[TellingRow, ...]


def communication_table(results: StudyResults, summary: StudySummary) -> CommunicationTable | None:
    """None where no trial had several ranks."""
    told = [each for each in compared_and_front(results, summary) if each.trial.communication is not None]
    if not told:
        return None
    kinds = [kind for kind in COLLECTIVES if any(_count(each.trial, kind).calls for each in told)]
    is_sharded = _strategy(results) == "fsdp2"
    columns = (*([RESHARD] if is_sharded else []), *(COLLECTIVES[kind] for kind in kinds), ADDED)
    return CommunicationTable(_about(results, told[0].trial), columns, tuple(_row(e, kinds, is_sharded) for e in told))


def _about(results: StudyResults, trial: TrialRecord) -> str:
    stages = trial.stage_micro_batches
    who = (
        f"each of {trial.data_parallel_degree} ranks under {_strategy(results)} takes"
        if stages is None
        else f"the stage that sends and receives most, of {len(stages)}, takes"
    )
    return (
        f"What {who} part in per optimizer step: calls and their payload. Added by recompute is what the same step "
        "without the policy does not have."
    )


def _strategy(results: StudyResults) -> str:
    runner = results.search.get("runner")
    return str(runner.get("strategy", "none")) if isinstance(runner, dict) else "none"


def _row(told: TellingTrial, kinds: list[str], is_sharded: bool) -> TellingRow:
    trial = told.trial
    stays_whole = trial.policy.get("reshard_after_forward") is False
    values = (
        *([("yes" if stays_whole else "no")] if is_sharded else []),
        *(_counted(_count(trial, kind)) for kind in kinds),
        _added(trial),
    )
    return telling_row(told, values)


def _count(trial: TrialRecord, kind: str) -> CollectiveCount:
    count: CollectiveCount = getattr(trial.communication, kind)
    return count


def _counted(count: CollectiveCount) -> str:
    return f"{count.calls:,} ({format_bytes(count.bytes)})" if count.calls else "0"


def _added(trial: TrialRecord) -> str:
    counts = {name: _count(trial, kind) for kind, name in COLLECTIVES.items()}
    if all(count.calls_added_by_recompute is None for count in counts.values()):
        return "not measured"
    added = [
        f"{count.calls_added_by_recompute:+,} {name} ({_signed(count.bytes_added_by_recompute or 0)})"
        for name, count in counts.items()
        if count.calls_added_by_recompute
    ]
    return ", ".join(added) or "none"


def _signed(num_bytes: int) -> str:
    return f"{'-' if num_bytes < 0 else '+'}{format_bytes(abs(num_bytes))}"
