"""The loop: ask -> submit -> collect -> score -> tell. Knows no store, no screen and no cluster, only their seams."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from runners.base import TrialRunner
from runners.trial import TrialResult, TrialSpec, TrialStatus
from search_spaces.policy import RecomputePolicy
from tuner.objective import Objective, Score
from tuner.results import LOST_STATUSES
from tuner.sampling.policy_sampler import NoGainExpected, SpaceExhausted
from tuner.sampling.policy_study import PolicyStudy, Proposal
from tuner.stopping import Progress, StopReason, StopRule, count_failed_in_a_row, first_reason

#: Seconds that the loop waits for a result before it looks at its rules again.
_COLLECT_TIMEOUT_S = 1.0


class SearchListener(Protocol):
    """Told what happens, in order: for the screen, the results file and MLflow."""

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        """A trial was handed to the runner."""

    def finished(self, result: TrialResult, score: Score) -> None:
        """A trial's result is in the study's storage, or the storage is about to end the search."""


class Search:
    """One session of a study.

    Args:
        make_spec: From a trial's number and policy, what the runner is given.
        plan: Policies to try, in order, before the sampler is asked; those already tried are passed over. The first one
            is the baseline, and nothing else is started before it has run.
        previous: Results of earlier sessions of the same study.
        previous_elapsed_s: Wall time of those sessions.
    """

    def __init__(
        self,
        study: PolicyStudy,
        runner: TrialRunner,
        *,
        objective: Objective,
        rules: Sequence[StopRule],
        make_spec: Callable[[int, RecomputePolicy], TrialSpec],
        listeners: Sequence[SearchListener],
        plan: Sequence[RecomputePolicy],
        previous: Sequence[TrialResult] = (),
        previous_elapsed_s: float = 0.0,
    ) -> None:
        self._study = study
        self._runner = runner
        self._objective = objective
        self._rules = rules
        self._make_spec = make_spec
        self._listeners = listeners
        self._baseline_policy = plan[0]
        self._baseline_key = plan[0].key
        self._plan = deque(plan)
        self._in_flight: dict[int, Proposal] = {}
        #: In order of finishing, since the last trial that worked.
        self._statuses: list[TrialStatus] = []
        self._last_failure: str | None = None
        self._baseline: TrialResult | None = None
        self._space_exhausted = False
        self._no_further_gain: str | None = None
        self._start = time.monotonic() - previous_elapsed_s
        for result in previous:
            self._note(result)

    @property
    def elapsed_s(self) -> float:
        """Wall time of the study so far, earlier sessions included."""
        return time.monotonic() - self._start

    def run(self, pause: Callable[[], None] = lambda: None) -> StopReason:
        """Runs trials until a rule says stop and all that were started have ended.

        Args:
            pause: Called again and again where every result is stored and none is waited for; may raise to leave.
        """
        while True:
            pause()
            reason = self._start_trials()
            if reason is not None and not self._in_flight:
                return reason
            for result in self._runner.collect(_COLLECT_TIMEOUT_S):
                self._finish(result)

    def cancel(self) -> None:
        """Stops the trials in flight and records them as cancelled, so that a resumed study tries them anew."""
        for result in self._runner.cancel():
            self._finish(result)

    def _start_trials(self) -> StopReason | None:
        """Fills the runner; the reason where no further trial is to be started."""
        while True:
            reason = first_reason(self._rules, self._progress())
            if reason is not None:
                return reason
            if len(self._in_flight) >= self._runner.capacity() or (self._in_flight and self._baseline is None):
                return None
            try:
                proposal = self._propose()
            except SpaceExhausted:
                self._space_exhausted = True
                continue
            except NoGainExpected as end:
                self._no_further_gain = str(end)
                continue
            self._runner.submit(self._make_spec(proposal.trial_number, proposal.policy))
            self._in_flight[proposal.trial_number] = proposal
            for listener in self._listeners:
                listener.started(proposal.trial_number, proposal.policy)

    def _propose(self) -> Proposal:
        """The next policy of the plan, handed over only now: what a dead driver leaves queued would come first."""
        while self._plan and not self._study.enqueue(self._plan.popleft()):
            pass
        return self._study.ask()

    def _finish(self, result: TrialResult) -> None:
        proposal = self._in_flight.pop(result.trial_number, None)
        if proposal is not None:
            result = result.model_copy(update={"prediction": proposal.prediction})
        self._no_further_gain = None
        score = self._objective.score(result)
        try:
            self._study.tell(result, score)
        finally:
            # Where the storage does not take it, this is how the result is kept.
            self._note(result)
            for listener in self._listeners:
                listener.finished(result, score)

    def _note(self, result: TrialResult) -> None:
        if result.status is not TrialStatus.FAILED and result.status not in LOST_STATUSES:
            self._statuses.clear()
        self._statuses.append(result.status)
        if result.status is TrialStatus.FAILED:
            self._last_failure = result.reason
        if result.policy.key != self._baseline_key:
            return
        if result.status in LOST_STATUSES:
            self._plan.appendleft(self._baseline_policy)
        else:
            self._baseline = result

    def _progress(self) -> Progress:
        baseline_failed = self._baseline is not None and self._baseline.status is TrialStatus.FAILED
        return Progress(
            num_trials=self._study.num_counted_trials(),
            elapsed_s=self.elapsed_s,
            space_exhausted=self._space_exhausted,
            no_further_gain=self._no_further_gain,
            baseline_failure=self._baseline.reason if baseline_failed and self._baseline is not None else None,
            num_failed_in_a_row=count_failed_in_a_row(self._statuses),
            last_failure=self._last_failure,
        )
