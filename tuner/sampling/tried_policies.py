"""A study's trials in the terms of the prediction models."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from runners.trial import TrialResult, TrialStatus
from search_spaces.base import SearchSpace
from search_spaces.policy import RecomputePolicy
from tuner.objective import Objective, ranking_speeds
from tuner.prediction.tried import Tried
from tuner.sampling.trial_records import RESULT_ATTRIBUTE, policy_of, status_of

#: Ends that say nothing about a policy.
_SAYS_NOTHING = (TrialStatus.CANCELLED, TrialStatus.NODE_LOST)


class TriedPolicies:
    """Reads trials, each finished one once."""

    def __init__(self, space: SearchSpace, objective: Objective) -> None:
        self._space = space
        self._objective = objective
        self._finished: dict[int, Tried | None] = {}

    def read(self, trials: Sequence[FrozenTrial]) -> list[Tried]:
        """All trials that say something or are in flight, in order of number; those enqueued are left out."""
        tried = []
        for trial in trials:
            if trial.state is TrialState.WAITING:
                continue
            if not trial.state.is_finished():
                policy = policy_of(trial, self._space)
                known = None if policy is None else Tried(policy)
            else:
                if trial.number not in self._finished:
                    self._finished[trial.number] = self._read_finished(trial)
                known = self._finished[trial.number]
            if known is not None:
                tried.append(known)
        return tried

    def _read_finished(self, trial: FrozenTrial) -> Tried | None:
        policy = policy_of(trial, self._space)
        stored = trial.user_attrs.get(RESULT_ATTRIBUTE)
        if policy is None or stored is None or status_of(trial) in _SAYS_NOTHING:
            return None
        return tried_of(TrialResult.model_validate({**stored, "policy": policy}), policy, self._objective)


def tried_of(result: TrialResult, policy: RecomputePolicy, objective: Objective) -> Tried:
    """One finished trial; its time is that of a step over the reference's, where there is a reference."""
    score = objective.score(result)
    peak = result.peak_memory_bytes
    if result.status is TrialStatus.OUT_OF_MEMORY:
        peak = max(peak or 0, objective.memory_cap_bytes)
    time = standard_error = None
    if result.status is TrialStatus.COMPLETED and score.values is not None:
        speed = score.values[0]
        time = 1 / speed
        (measured,) = ranking_speeds([result])
        if measured is not None and measured.standard_error is not None:
            standard_error = measured.standard_error / measured.value * time
    proof = result.verification
    return Tried(
        policy=policy,
        status=result.status,
        time=time,
        standard_error=standard_error,
        peak_bytes=peak,
        is_feasible=score.feasible,
        recompute_verdict=None if proof is None else proof.recompute_verdict or proof.verdict,
        split_verdict=None if proof is None else proof.split_verdict,
    )
