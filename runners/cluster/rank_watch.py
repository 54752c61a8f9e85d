"""Waits for all ranks of a trial at once; where one fails, finds out which one the fault began with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from runners.cluster.nodes import node_answers
from runners.parallel.records import WaitingPlace
from runners.proof.limits import ProofLimits
from runners.trial import FailureStatus, TrialStatus

#: Seconds between two looks at the clock while ranks run.
_LOOK_S = 1.0
#: Seconds in which other ranks may tell the real reason once one has failed: a rank that dies makes its peers fail.
_REASON_S = 2.0
#: Seconds in which an agent that lives answers, and in which Ray notices that one does not.
_PING_S, _LOSS_S = 3.0, 30.0


@dataclass(frozen=True)
class RankFailure:
    """Why ranks did not come to an answer.

    Attributes:
        reason: One line that begins with the rank.
        has_died: Its process ended without an answer: what its peers say then is a consequence.
        tighter_limits: As in a `RankOutcome`.
    """

    rank: int
    status: FailureStatus
    reason: str
    detail: str | None = None
    has_died: bool = False
    tighter_limits: ProofLimits | None = None

    @property
    def explains_itself(self) -> bool:
        """Nothing that happened to another rank can have led to it."""
        return self.status is TrialStatus.OUT_OF_MEMORY and not self.has_died

    @property
    def gravity(self) -> int:
        """Which of several failures explains the others."""
        if self.status is TrialStatus.NODE_LOST:
            return 3
        return 2 if self.has_died else int(self.status is TrialStatus.OUT_OF_MEMORY)


#: From a rank and its answer to its failure, if it is one.
FailureOf = Callable[[int, str], RankFailure | None]


@dataclass(frozen=True)
class RankPlace:
    """Who watches over a rank's process, and on which node."""

    agent: Any
    node_id: str


def watch_ranks(
    places: Sequence[RankPlace], running: Mapping[Any, int], *, timeout_s: float | None, failure_of: FailureOf
) -> list[str] | RankFailure:
    """The answers of all ranks, in order, or the failure that ended them; other ranks may still run then.

    Args:
        running: Ray's references to the ranks' answers.
    """
    watch = _Watch(places, running, failure_of)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while watch.waiting:
        left_s = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
        if left_s <= 0:
            return watch.late_ranks(f"not finished after {timeout_s:g} s")
        watch.collect(left_s)
        if watch.failures:
            return watch.origin()
    return [watch.answers[rank] for rank in range(len(places))]


class _Watch:
    def __init__(self, places: Sequence[RankPlace], running: Mapping[Any, int], failure_of: FailureOf) -> None:
        self.waiting = dict(running)
        self.answers: dict[int, str] = {}
        self.failures: list[RankFailure] = []
        self._places = places
        self._failure_of = failure_of

    def collect(self, timeout_s: float, *, at_least: int = 1) -> None:
        """Takes what has arrived, waiting for so many answers."""
        if not self.waiting:
            return
        done, _ = ray.wait(list(self.waiting), num_returns=min(at_least, len(self.waiting)), timeout=timeout_s)
        for reference in done:
            failure = self._take(self.waiting.pop(reference), reference)
            if failure is not None:
                self.failures.append(failure)

    def origin(self) -> RankFailure:
        """The failure that the others follow from."""
        told = [failure for failure in self.failures if failure.explains_itself]
        if told:
            return told[0]
        self.collect(_REASON_S, at_least=len(self.waiting))
        # The peers of a rank whose node is lost fail at once, while Ray takes some seconds to notice.
        silent = list(self.waiting.values())
        pings = {self._places[rank].agent.pid.remote(): rank for rank in silent}
        alive, _ = ray.wait(list(pings), num_returns=len(pings), timeout=_PING_S) if pings else ([], [])
        missing = {rank for ping, rank in pings.items() if ping not in alive}
        deadline = time.monotonic() + _LOSS_S
        while missing & set(self.waiting.values()) and time.monotonic() < deadline:
            self.collect(_LOOK_S)
        # Of equally grave ones the first to be heard of is the origin.
        return max(self.failures, key=lambda failure: failure.gravity)

    def late_ranks(self, reason: str) -> RankFailure:
        """Of those that have not answered, the ranks that the others wait for, and where they stand."""
        ranks = list(self.waiting.values())
        references = [self._places[rank].agent.stack.remote() for rank in ranks]
        told, _ = ray.wait(references, num_returns=len(references), timeout=_PING_S)
        places = {
            rank: WaitingPlace.model_validate_json(ray.get(reference)) if reference in told else WaitingPlace()
            for rank, reference in zip(ranks, references, strict=True)
        }
        stuck = [rank for rank, place in places.items() if place.place is not None and not place.waits]
        first = (stuck or ranks)[0]
        name = f"rank {first}" if len(stuck or ranks) == 1 else f"ranks {', '.join(map(str, stuck or ranks))}"
        where = f"; {'it' if name.startswith('rank ') else f'rank {first}'} stands in {places[first].place}"
        others = "" if not stuck or len(stuck) == len(self._places) else ", and the other ranks wait for it"
        if others and len(stuck) > 1:
            others = ", and the other ranks wait for them"
        place = "" if places[first].place is None else where
        return RankFailure(first, TrialStatus.TIMED_OUT, f"{name}: {reason}{place}{others}; stopped")

    def _take(self, rank: int, reference: Any) -> RankFailure | None:
        try:
            self.answers[rank] = ray.get(reference)
        except ray.exceptions.OutOfMemoryError:
            reason = f"rank {rank}: the node ran out of memory and Ray stopped the worker"
            return RankFailure(rank, TrialStatus.OUT_OF_MEMORY, reason, has_died=True)
        except ray.exceptions.RayError as error:
            return self._lost(rank, error)
        return self._failure_of(rank, self.answers[rank])

    def _lost(self, rank: int, error: ray.exceptions.RayError) -> RankFailure:
        node_id = self._places[rank].node_id
        if node_answers(node_id):
            reason = f"rank {rank}: the process that watches over the worker on node {node_id[:8]} died"
            return RankFailure(rank, TrialStatus.FAILED, reason, detail=str(error), has_died=True)
        reason = f"rank {rank}: node {node_id[:8]} was lost during the trial"
        return RankFailure(rank, TrialStatus.NODE_LOST, reason, detail=str(error), has_died=True)
