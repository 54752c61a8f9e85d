"""One search on a problem whose truth is known: the loop of `tune run` itself, on a clock that jumps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial
from search_problem import Actual, SearchProblem

from runners.replay_runner import ReplayRunner
from runners.trial import Prediction, TrialResult, TrialSpec, TrialStatus, WorkloadSpec
from search_spaces.ablation import plain_policies
from search_spaces.policy import RecomputePolicy
from search_spaces.registry import make_space
from tuner.objective import Score
from tuner.sampling.policy_study import open_policy_study
from tuner.sampling.registry import MODEL_GUIDED, Guide, make_sampler
from tuner.sampling.tried_policies import TriedPolicies
from tuner.search import Search
from tuner.stopping import BaselineFailed, NoFurtherGain, NothingLeft, NumTrials, TooManyFailures

_WORKLOAD = WorkloadSpec(model_factory="recorded")


@dataclass(frozen=True)
class TrialTrace:
    """One finished trial, in order of finishing.

    Attributes:
        actual: The truth about its policy; None where that was never measured.
        is_feasible: It completed within the cap.
        is_over_cap: It was run and its peak is over the cap.
        time: As measured, one over the speed that trials are ranked by; None where nothing was.
        standard_error: Of ``time``.
        predicted_time: None before anything was measured, and where the sampler predicts nothing.
        predicted_deviation: Standard deviation of that.
    """

    actual: Actual | None
    is_feasible: bool
    is_over_cap: bool
    time: float | None
    standard_error: float | None
    predicted_time: float | None
    predicted_deviation: float | None


@dataclass(frozen=True)
class SearchTrace:
    """A whole search.

    Attributes:
        stop_code: Of `tuner.stopping.StopReason`.
    """

    trials: tuple[TrialTrace, ...]
    stop_code: str


def run_search(
    problem: SearchProblem, sampler_name: str, *, seed: int, num_trials: int, num_workers: int = 1
) -> SearchTrace:
    """Searches as `tune run` does, without its time limit, its files and its playoff."""
    logging.getLogger("optuna").setLevel(logging.ERROR)
    space = make_space("two_action", problem.choices)
    tried = TriedPolicies(space, problem.objective)
    guided = sampler_name == MODEL_GUIDED
    forecast = problem.forecast() if guided else None
    guide = None if forecast is None else Guide(forecast.proposer, tried)

    def predict(policy: RecomputePolicy, trials: Sequence[FrozenTrial]) -> Prediction | None:
        return None if forecast is None else forecast.predict(policy, tried.read(trials))

    study = open_policy_study(
        "benchmark", space=space, sampler=make_sampler(sampler_name, space, seed=seed, guide=guide), predict=predict
    )
    plan = plain_policies(problem.choices)
    listener = _Listener(problem)
    search = Search(
        study,
        _runner(problem, seed, num_workers),
        objective=problem.objective,
        rules=[BaselineFailed(), TooManyFailures(), NothingLeft(), NoFurtherGain(), NumTrials(num_trials)],
        make_spec=lambda number, policy: TrialSpec(
            trial_number=number,
            policy=policy,
            workload=_WORKLOAD,
            memory_cap_bytes=problem.objective.memory_cap_bytes,
        ),
        listeners=[listener],
        # As in a session of `tune run`: the models say better than a fixed order what to measure after the baseline.
        plan=plan[:1] if guided else plan,
    )
    reason = search.run()
    study.close()
    return SearchTrace(tuple(listener.trials), reason.code)


def _runner(problem: SearchProblem, seed: int, num_workers: int) -> ReplayRunner:
    def latency_s(spec: TrialSpec) -> float:
        actual = problem.actual(spec.policy)
        # Some steps; what cannot run is over sooner. With several workers trials overtake one another.
        return 1.0 if actual is None else 20.0 * actual.time

    return ReplayRunner(
        problem.outcome(seed), capacity=num_workers, latency_s=latency_s, enforces_cap=problem.enforces_cap
    )


class _Listener:
    def __init__(self, problem: SearchProblem) -> None:
        self._problem = problem
        self.trials: list[TrialTrace] = []

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        """Only what has ended counts."""

    def finished(self, result: TrialResult, score: Score) -> None:
        completed = result.status is TrialStatus.COMPLETED and score.values is not None
        time = 1 / score.values[0] if completed and score.values is not None else None
        prediction = result.prediction
        self.trials.append(
            TrialTrace(
                actual=self._problem.actual(result.policy),
                is_feasible=score.feasible,
                is_over_cap=score.memory_overshoot is not None and score.memory_overshoot > 0,
                time=time,
                standard_error=None if time is None else _standard_error(result, time),
                predicted_time=None if prediction is None else prediction.time,
                predicted_deviation=None if prediction is None else prediction.time_deviation,
            )
        )


def _standard_error(result: TrialResult, time: float) -> float | None:
    if result.relative_speed is not None and result.relative_speed_spread is not None:
        return time * result.relative_speed_spread / result.relative_speed
    if result.step_time_s is not None and result.step_time_spread_s is not None:
        return time * result.step_time_spread_s / result.step_time_s
    return None
