"""When a search is over: small rules, each of which answers with a reason or with None."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from runners.trial import TrialStatus


@dataclass(frozen=True)
class Progress:
    """Where a search stands.

    Attributes:
        num_trials: Trials that were started and count: in flight or finished, without those cancelled or lost.
        elapsed_s: Since the search began, earlier sessions of a resumed study included.
        space_exhausted: No policy is left that was not tried and is not in flight.
        no_further_gain: Why no untried policy is worth a trial, in one line; None where one may be.
        baseline_failure: Why the plain baseline could not run, in one line; None where it could or is not known yet.
        num_failed_in_a_row: Trials with status FAILED since the last one with another status, by order of finishing.
        last_failure: The reason of the last of them.
    """

    num_trials: int = 0
    elapsed_s: float = 0.0
    space_exhausted: bool = False
    no_further_gain: str | None = None
    baseline_failure: str | None = None
    num_failed_in_a_row: int = 0
    last_failure: str | None = None


@dataclass(frozen=True)
class StopReason:
    """Why no further trial is started: a word for programs, a sentence for people, and whether something is wrong."""

    code: Literal[
        "num_trials", "time_limit", "space_exhausted", "no_further_gain", "baseline_failed", "too_many_failures"
    ]
    message: str
    is_failure: bool = False


class StopRule(Protocol):
    """One reason to stop."""

    def should_stop(self, progress: Progress) -> StopReason | None:
        """The reason, where it applies now; a rule that has applied keeps applying while nothing else changes."""


def first_reason(rules: Iterable[StopRule], progress: Progress) -> StopReason | None:
    """The first rule's answer that is a reason."""
    return next((reason for rule in rules if (reason := rule.should_stop(progress)) is not None), None)


@dataclass(frozen=True)
class NumTrials:
    """As many trials as the user asked for."""

    limit: int

    def should_stop(self, progress: Progress) -> StopReason | None:
        if progress.num_trials < self.limit:
            return None
        return StopReason("num_trials", f"all {self.limit} trials were run")


_TIME_LIMIT = "the time limit"


def was_time_limit(message: str | None) -> bool:
    """Whether a search whose `StopReason` said this ended for want of time."""
    return message is not None and message.startswith(_TIME_LIMIT)


@dataclass(frozen=True)
class TimeLimit:
    """As long as the user allowed; trials in flight are not counted out."""

    limit_s: float

    def should_stop(self, progress: Progress) -> StopReason | None:
        if progress.elapsed_s < self.limit_s:
            return None
        return StopReason("time_limit", f"{_TIME_LIMIT} of {self.limit_s:g} s was reached")


@dataclass(frozen=True)
class NothingLeft:
    """Every policy of the space was tried."""

    def should_stop(self, progress: Progress) -> StopReason | None:
        if not progress.space_exhausted:
            return None
        return StopReason("space_exhausted", f"space exhausted: all {progress.num_trials} policies were tried")


@dataclass(frozen=True)
class NoFurtherGain:
    """The sampler expects nothing of any untried policy; a result that is still to come may change its mind."""

    def should_stop(self, progress: Progress) -> StopReason | None:
        if progress.no_further_gain is None:
            return None
        return StopReason("no_further_gain", progress.no_further_gain)


@dataclass(frozen=True)
class BaselineFailed:
    """The model does not train even without recompute, so nothing else can be said about it."""

    def should_stop(self, progress: Progress) -> StopReason | None:
        if progress.baseline_failure is None:
            return None
        return StopReason(
            "baseline_failed", f"the model does not train without recompute: {progress.baseline_failure}", True
        )


@dataclass(frozen=True)
class TooManyFailures:
    """Trials fail one after the other, which a few placements that a model does not bear cannot explain.

    The limit lies above the number of plain placements that recompute (attention, mlp, both, block, segment, and block
    at other micro-batches), all of which may fail on a model whose blocks cannot be run twice.
    """

    limit: int = 10

    def should_stop(self, progress: Progress) -> StopReason | None:
        if progress.num_failed_in_a_row < self.limit:
            return None
        return StopReason(
            "too_many_failures",
            f"{progress.num_failed_in_a_row} trials in a row failed, the last one: {progress.last_failure}",
            True,
        )


def count_failed_in_a_row(statuses: Iterable[TrialStatus]) -> int:
    """Trailing FAILED among statuses in order of finishing; cancelled and lost trials say nothing and are skipped."""
    count = 0
    for status in statuses:
        if status is TrialStatus.FAILED:
            count += 1
        elif status not in (TrialStatus.CANCELLED, TrialStatus.NODE_LOST):
            count = 0
    return count
