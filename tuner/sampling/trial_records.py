"""What a study's trials in Optuna's storage say about policies: which one each tried, and how it ended."""

from __future__ import annotations

from optuna.trial import FrozenTrial

from runners.trial import TrialStatus
from search_spaces.base import SearchSpace
from search_spaces.parameters import ParameterValue
from search_spaces.policy import RecomputePolicy

#: User attribute with the whole result of a trial, the policy apart, which its parameters are.
RESULT_ATTRIBUTE = "result"
_ENQUEUED_PARAMS = "fixed_params"


def policy_of(trial: FrozenTrial, space: SearchSpace) -> RecomputePolicy | None:
    """The policy of a trial, enqueued ones included; None for one whose driver died before it had a policy."""
    values: dict[str, ParameterValue] = {**trial.system_attrs.get(_ENQUEUED_PARAMS, {}), **trial.params}
    if any(parameter.name not in values for parameter in space.parameters()):
        return None
    return space.decode(values)


def status_of(trial: FrozenTrial) -> TrialStatus | None:
    """How a trial ended; None for one that is unfinished. One without a result was interrupted."""
    if not trial.state.is_finished():
        return None
    result = trial.user_attrs.get(RESULT_ATTRIBUTE)
    return TrialStatus.CANCELLED if result is None else TrialStatus(result["status"])
