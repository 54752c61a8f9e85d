"""An Optuna study that speaks of policies and scores: the one place where trials are asked for and told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from mlflow_config.database_errors import is_locked
from runners.trial import Prediction, TrialResult, TrialStatus
from search_spaces.base import SearchSpace
from search_spaces.policy import RecomputePolicy
from tuner.objective import Score
from tuner.sampling.distributions import to_distributions
from tuner.sampling.driver_storage import DriverStorage
from tuner.sampling.patience import Patience
from tuner.sampling.policy_sampler import PolicySampler
from tuner.sampling.trial_database import open_database
from tuner.sampling.trial_records import RESULT_ATTRIBUTE, policy_of, status_of

_ID_ATTRIBUTE = "study_id"

#: What is predicted of a policy, given all trials of its study in order of number.
Predictor = Callable[[RecomputePolicy, Sequence[FrozenTrial]], Prediction | None]
_UNCOUNTED = (TrialStatus.CANCELLED, TrialStatus.NODE_LOST)


@dataclass(frozen=True)
class Proposal:
    """A trial that was asked for, the policy to try in it, and what is predicted of it."""

    trial_number: int
    policy: RecomputePolicy
    prediction: Prediction | None = None


class PolicyStudy:
    """Proposes policies and learns scores. One driver at a time; results may be told in any order."""

    def __init__(
        self,
        study: optuna.Study,
        space: SearchSpace,
        sampler: PolicySampler,
        storage: DriverStorage | None,
        *,
        predict: Predictor | None,
    ) -> None:
        """Stores a study whose trials are all of this space.

        Args:
            storage: The study's own, if it holds back what it writes.
            predict: What is predicted of a policy, given the study's trials; None predicts nothing.
        """
        self._predict = predict
        self._study = study
        self._storage = storage
        self._space = space
        self._sampler = sampler
        self._distributions = to_distributions(space)
        self._in_flight: dict[int, optuna.Trial] = {}
        self._num_counted: int | None = None

    def enqueue(self, policy: RecomputePolicy) -> bool:
        """Puts a policy in front of what the sampler proposes, first come first served; False where it is taken.

        Raises:
            ValueError: The space cannot say the policy.
        """
        if self._sampler.is_taken(policy, self._study.get_trials(deepcopy=False)):
            return False
        self._study.enqueue_trial(dict(self._space.encode(policy)))
        return True

    def ask(self) -> Proposal:
        """The next enqueued policy, else one that the sampler proposes; never one that is taken.

        Raises:
            SpaceExhausted: No policy is left; no trial was created.
            NoGainExpected: None of those left is worth a trial; no trial was created.
        """
        num_counted = self.num_counted_trials()
        trials = self._study.get_trials(deepcopy=False)
        if not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self._sampler.raise_if_exhausted(trials)
        trial = self._study.ask(self._distributions)
        policy = self._space.decode(trial.params)
        prediction = None if self._predict is None else self._predict(policy, trials)
        if self._storage is not None:
            self._storage.flush()
        self._in_flight[trial.number] = trial
        self._num_counted = num_counted + 1
        return Proposal(trial.number, policy, prediction)

    def tell(self, result: TrialResult, score: Score) -> bool:
        """Finishes a trial that was asked for; False where it was closed meanwhile, and the result is dropped.

        The result itself is stored first, whole, or together with the trial's end: a driver that dies right here has
        lost nothing.

        Raises:
            KeyError: The trial was not asked for here, or was told already.
        """
        trial = self._in_flight.pop(result.trial_number)
        num_counted = self.num_counted_trials()
        try:
            self._store(trial, result, score)
        except UpdateFinishedTrialError:
            self._num_counted = None
            return False
        self._num_counted = num_counted - (result.status in _UNCOUNTED)
        return True

    def close_interrupted(
        self,
        score: Callable[[TrialResult], Score],
        kept: Callable[[int], TrialResult | None] = lambda trial_number: None,
    ) -> list[Proposal]:
        """Closes trials that a dead driver left running: finished ones by their result, all others as cancelled.

        For the start of a resumed study, when no other driver is alive.

        Args:
            score: What a stored result is worth.
            kept: The result of a trial that was kept elsewhere, for those whose end could not be stored.

        Returns:
            The trials that had no result, with their policies.
        """
        closed = []
        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            policy = policy_of(frozen, self._space)
            stored = frozen.user_attrs.get(RESULT_ATTRIBUTE)
            if frozen.number in self._in_flight:
                continue
            if policy is not None and stored is not None:
                result = TrialResult.model_validate({**stored, "policy": policy})
                self._finish(optuna.Trial(self._study, frozen._trial_id), score(result))
                continue
            result_elsewhere = kept(frozen.number)
            if policy is not None and result_elsewhere is not None and result_elsewhere.policy.key == policy.key:
                self._store(optuna.Trial(self._study, frozen._trial_id), result_elsewhere, score(result_elsewhere))
                continue
            self._study.tell(frozen.number, state=TrialState.FAIL)
            if policy is not None:
                closed.append(Proposal(frozen.number, policy))
        self._num_counted = None
        return closed

    def restore(self, results: Iterable[TrialResult], score: Callable[[TrialResult], Score]) -> None:
        """Takes in the trials of a study whose storage was lost, under their own numbers.

        Those that are there already stay, so it may be done again where it was interrupted.
        """
        self.close_interrupted(score)
        for result in sorted(results, key=lambda result: result.trial_number):
            trials = self._study.get_trials(deepcopy=False)
            is_enqueued = bool(trials) and trials[-1].state is TrialState.WAITING
            if result.trial_number < len(trials) - is_enqueued:
                continue
            for _ in range(len(trials), result.trial_number):
                # It had not ended, or its policy is not known.
                self._study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
            if not is_enqueued:
                self._study.enqueue_trial(dict(self._space.encode(result.policy)))
            self._store(self._study.ask(self._distributions), result, score(result))
        self._num_counted = None

    def results(self) -> list[TrialResult]:
        """Results of all finished trials, in order of number; those closed without one read as cancelled."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            policy = policy_of(trial, self._space) if trial.state.is_finished() else None
            if policy is None:
                continue
            stored = trial.user_attrs.get(RESULT_ATTRIBUTE)
            if stored is None:
                found.append(_interrupted(trial.number, policy))
            else:
                found.append(TrialResult.model_validate({**stored, "policy": policy}))
        return found

    def num_counted_trials(self) -> int:
        """Trials in flight or finished, without those that were cancelled, interrupted or lost with their node."""
        if self._num_counted is None:
            trials = self._study.get_trials(deepcopy=False)
            self._num_counted = sum(
                t.state is not TrialState.WAITING and status_of(t) not in _UNCOUNTED for t in trials
            )
        return self._num_counted

    def close(self) -> None:
        """Lets go of the storage; may be called twice."""
        if self._storage is not None:
            self._storage.close()

    def attribute(self, name: str) -> Any:
        """What `set_attribute` kept beside the trials; None where nothing is."""
        return self._study.user_attrs.get(name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Keeps plain JSON data with the study."""
        self._study.set_user_attr(name, value)

    def unique_id(self) -> str | None:
        """What tells this study from every other one, in other stores too; None before `set_unique_id`."""
        known = self.attribute(_ID_ATTRIBUTE)
        return None if known is None else str(known)

    def set_unique_id(self, unique_id: str) -> None:
        """Keeps the id with the study."""
        self.set_attribute(_ID_ATTRIBUTE, unique_id)

    def _store(self, trial: optuna.Trial, result: TrialResult, score: Score) -> None:
        trial.set_user_attr(RESULT_ATTRIBUTE, result.model_dump(mode="json", exclude={"policy"}))
        self._finish(trial, score)

    def _finish(self, trial: optuna.Trial, score: Score) -> None:
        for name, overshoot in score.constraints.items():
            trial.set_constraint(name, overshoot)
        state = TrialState.FAIL if score.values is None else TrialState.COMPLETE
        self._study.tell(trial, score.values, state=state)


def _interrupted(trial_number: int, policy: RecomputePolicy) -> TrialResult:
    reason = "interrupted: the process that ran the study ended first"
    return TrialResult(trial_number=trial_number, policy=policy, status=TrialStatus.CANCELLED, reason=reason)


def has_policy_study(name: str, storage: str) -> bool:
    """Whether the storage at this address has a study of this name."""
    return name in optuna.get_all_study_names(storage=storage)


def stored_attribute(name: str, storage: str, attribute: str) -> Any:
    """What `PolicyStudy.set_attribute` kept of a study at this address; None where there is none of either."""
    if not has_policy_study(name, storage):
        return None
    return optuna.load_study(study_name=name, storage=storage).user_attrs.get(attribute)


def open_policy_study(
    name: str,
    *,
    space: SearchSpace,
    sampler: PolicySampler,
    storage: str | BaseStorage | None = None,
    predict: Predictor | None = None,
    is_new: bool = False,
    patience: Patience | None = None,
) -> PolicyStudy:
    """The study of this name in the storage, created where there is none; None keeps it in memory.

    Args:
        is_new: There must be none: of two drivers that begin at the same moment, one gets the study.
        patience: With a storage that does not answer once it is open; default is none.

    Raises:
        optuna.exceptions.DuplicatedStudyError: There is one, and it should be new.
    """
    # Optuna reports every study it creates on standard error; what the user should know we say ourselves.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    driver_storage = _open_storage(storage, patience or Patience()) if isinstance(storage, str) else None
    study = optuna.create_study(
        study_name=name,
        storage=driver_storage or storage,
        sampler=sampler,
        directions=("maximize", "minimize"),
        load_if_exists=not is_new,
    )
    return PolicyStudy(study, space, sampler, driver_storage, predict=predict)


def _open_storage(url: str, patience: Patience) -> DriverStorage:
    """At first, only a lock is waited for: whatever else is wrong is more likely in the address."""
    database = replace(patience, is_worth_it=is_locked).call(lambda _: open_database(url))
    return DriverStorage(database, patience)
