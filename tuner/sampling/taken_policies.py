"""Which policies a study has tried, is trying or has enqueued, and which is the next that it has not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from optuna.trial import FrozenTrial

from runners.trial import TrialStatus
from search_spaces.base import SearchSpace
from search_spaces.policy import RecomputePolicy
from tuner.sampling.trial_records import policy_of, status_of

#: A policy whose trial was lost with its node this often is not tried again: it may be what brings nodes down.
MOST_LOST_TRIALS = 2


class TakenPolicies(Container[RecomputePolicy]):
    """The policies that are not to be proposed, read from the study's own trials, so that it survives a resume.

    Every trial takes its policy, except one that was cancelled, interrupted or lost with its node: it says nothing
    about the policy, which may be tried anew. Each trial is decoded once, however long the study.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._num_read = 0
        #: What was last read of each trial that was unfinished then, and its policy, if it had one.
        self._unfinished: dict[int, tuple[FrozenTrial, RecomputePolicy | None]] = {}
        self._num_unfinished: Counter[RecomputePolicy] = Counter()
        self._tried: set[RecomputePolicy] = set()
        self._num_lost: Counter[RecomputePolicy] = Counter()
        self._freed: dict[RecomputePolicy, None] = {}

    def __contains__(self, policy: object) -> bool:
        return policy in self._tried or policy in self._num_unfinished

    def freed(self) -> list[RecomputePolicy]:
        """Policies that a trial took and gave back and that nobody took since, the oldest first."""
        return [policy for policy in self._freed if policy not in self]

    def update(self, trials: Sequence[FrozenTrial]) -> None:
        """Reads what changed since the last call; ``trials`` are all of the study, in order of number."""
        # A trial that is the same object still is as it was: storages do not change what they have handed out.
        changed = [number for number, (seen, _) in self._unfinished.items() if trials[number] is not seen]
        for trial in (*(trials[number] for number in changed), *trials[self._num_read :]):
            if trial.state.is_finished():
                self._read_finished(trial)
            else:
                self._read_unfinished(trial)
        self._num_read = len(trials)

    def _read_unfinished(self, trial: FrozenTrial) -> None:
        _, policy = self._unfinished.get(trial.number, (trial, None))
        if policy is None:
            policy = policy_of(trial, self._space)
            if policy is not None:
                self._num_unfinished[policy] += 1
        self._unfinished[trial.number] = (trial, policy)

    def _read_finished(self, trial: FrozenTrial) -> None:
        _, policy = self._unfinished.pop(trial.number, (trial, None))
        if policy is None:
            policy = policy_of(trial, self._space)
        elif self._num_unfinished[policy] == 1:
            del self._num_unfinished[policy]
        else:
            self._num_unfinished[policy] -= 1
        if policy is None:
            return
        status = status_of(trial)
        self._num_lost[policy] += status is TrialStatus.NODE_LOST
        may_be_tried_anew = status in (TrialStatus.CANCELLED, TrialStatus.NODE_LOST)
        if may_be_tried_anew and self._num_lost[policy] < MOST_LOST_TRIALS:
            self._freed[policy] = None
        else:
            self._tried.add(policy)


class UntriedPolicies:
    """Walks a space in its own order past what is taken."""

    def __init__(self, space: SearchSpace, taken: TakenPolicies) -> None:
        self._taken = taken
        self._walk = space.policies()
        self._next = next(self._walk, None)

    def first(self) -> RecomputePolicy | None:
        """The first policy that is not taken, those given back before all others; None where all are taken."""
        freed = self._taken.freed()
        if freed:
            return freed[0]
        # What was passed can only come back as freed, so the walk never needs to begin again.
        while self._next is not None and self._next in self._taken:
            self._next = next(self._walk, None)
        return self._next
