"""Optuna's database as the one driver of a study needs it: read once, kept in memory, written through."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy  # named by Optuna's base class, exported nowhere else
from optuna.trial import FrozenTrial, TrialState

from tuner.sampling.patience import Patience
from tuner.sampling.trial_writer import TrialChanges, TrialWriter, trial_writer

T = TypeVar("T")


class DriverStorage(BaseStorage):
    """A storage for the only driver of a study, from one thread.

    Optuna's own storage reads every unfinished trial anew each time a sampler looks at the study, and writes each
    parameter and attribute in a transaction of its own: over a second per trial with 1,000 in flight. Here trials are
    read once. What is set on a trial is written in one transaction with the trial's next state or by `flush`, so that a
    result is in the database exactly when its trial is finished there.

    Should another driver touch the study all the same, trials that it closed refuse what is told of them, and trials
    that it created are read when this one creates its next.

    Args:
        patience: With a database that does not answer; default is none.
    """

    def __init__(self, database: RDBStorage, patience: Patience | None = None) -> None:
        self._database = database
        # A connection to a SQLite file that was opened for reading only stays so, whatever becomes of the file.
        self._patience = replace(patience or Patience(), reconnect=self._let_go)
        self._writer: TrialWriter = trial_writer(database)
        self._studies: dict[int, _Study] = {}
        self._trials: dict[int, tuple[_Study, int]] = {}
        self._changes: dict[int, TrialChanges] = {}

    def flush(self) -> None:
        """Writes what was set on trials and waits for their next state."""
        for trial_id in list(self._changes):
            self._write(trial_id)

    def close(self) -> None:
        """Lets go of the database, whose SQLite file is complete in itself then; may be called twice."""
        self._let_go()

    def _let_go(self) -> None:
        self._database.remove_session()
        self._database.engine.dispose()

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        study = self._study(study_id)
        last_id = study.trials[-1]._trial_id if study.trials else -1

        def create(is_retry: bool) -> FrozenTrial:
            # Where the connection was lost meanwhile, nobody told whether the trial was created.
            trial = self._first_after(study_id, last_id) if is_retry else None
            if trial is None and template_trial is None:
                return _running_trial(*self._writer.create(study_id, after=last_id, num_before=len(study.trials)))
            if trial is None:
                trial = self._database.get_trial(self._database.create_new_trial(study_id, template_trial))
            return trial

        trial = self._patience.call(create)
        if trial.number != len(study.trials):
            self._patience.call(lambda _: self._read_trials(study_id))
        else:
            self._add(study, trial)
        return trial._trial_id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        trial = self._writable_copy(trial_id)
        known = self._trials[trial_id][0].distributions.setdefault(param_name, distribution)
        check_distribution_compatibility(known, distribution)
        trial.params = {**trial.params, param_name: distribution.to_external_repr(param_value_internal)}
        trial.distributions = {**trial.distributions, param_name: distribution}
        self._changes_of(trial_id).params[param_name] = (param_value_internal, distribution)
        self._replace(trial)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        trial = self._writable_copy(trial_id)
        trial.user_attrs = {**trial.user_attrs, key: value}
        self._changes_of(trial_id).user_attrs[key] = value
        self._replace(trial)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        trial = self._writable_copy(trial_id)
        trial.system_attrs = {**trial.system_attrs, key: value}
        self._changes_of(trial_id).system_attrs[key] = value
        self._replace(trial)

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        trial = self._writable_copy(trial_id)
        trial.intermediate_values = {**trial.intermediate_values, step: intermediate_value}
        self._call(lambda: self._database.set_trial_intermediate_value(trial_id, step, intermediate_value))
        self._replace(trial)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        trial = self._writable_copy(trial_id)
        if state is TrialState.RUNNING and trial.state is not TrialState.WAITING:
            return False
        changes = self._changes_of(trial_id)
        changes.state, changes.values = state, values
        self._write(trial_id)
        trial.state = state
        if values is not None:
            trial.values = list(values)
        if state is TrialState.RUNNING:
            trial.datetime_start = datetime.datetime.now()
        elif state.is_finished():
            trial.datetime_complete = datetime.datetime.now()
        self._replace(trial)
        return True

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if trial_id not in self._trials:
            raise KeyError(f"no trial with id {trial_id} is known")
        study, number = self._trials[trial_id]
        return study.trials[number]

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        trials = self._study(study_id).trials
        if trial_number >= len(trials):
            raise KeyError(f"the study has no trial {trial_number}; it has {len(trials)}")
        return trials[trial_number]._trial_id

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        study = self._study(study_id)
        if states == (TrialState.WAITING,):
            # What Optuna asks before each trial.
            found = [study.trials[number] for number in sorted(study.waiting)]
        else:
            found = [trial for trial in study.trials if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        return self._call(lambda: self._database.create_new_study(directions, study_name))

    def delete_study(self, study_id: int) -> None:
        for trial in self._studies.pop(study_id, _Study()).trials:
            del self._trials[trial._trial_id]
        self._database.delete_study(study_id)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._call(lambda: self._database.set_study_user_attr(study_id, key, value))

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._call(lambda: self._database.set_study_system_attr(study_id, key, value))

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._call(lambda: self._database.get_study_id_from_name(study_name))

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._call(lambda: self._database.get_study_name_from_id(study_id))

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        study = self._study(study_id)
        if study.directions is None:
            study.directions = self._call(lambda: self._database.get_study_directions(study_id))
        return study.directions

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._call(lambda: self._database.get_study_user_attrs(study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._call(lambda: self._database.get_study_system_attrs(study_id))

    def get_all_studies(self) -> list[FrozenStudy]:
        return self._call(lambda: self._database.get_all_studies())

    def _study(self, study_id: int) -> _Study:
        if study_id not in self._studies:
            self._studies[study_id] = _Study()
            self._call(lambda: self._read_trials(study_id))
        return self._studies[study_id]

    def _call(self, operation: Callable[[], T]) -> T:
        """Waits for the database where that is worth it; the operation may be done twice."""
        return self._patience.call(lambda _: operation())

    def _first_after(self, study_id: int, trial_id: int) -> FrozenTrial | None:
        trials = self._database.get_all_trials(study_id, deepcopy=False)
        return next((trial for trial in trials if trial._trial_id > trial_id), None)

    def _read_trials(self, study_id: int) -> None:
        """Reads the trials that are not known yet."""
        study = self._studies[study_id]
        for trial in self._database.get_all_trials(study_id, deepcopy=False)[len(study.trials) :]:
            self._add(study, trial)

    def _add(self, study: _Study, trial: FrozenTrial) -> None:
        # Thousands of trials share a handful of distributions; the database gives each trial its own.
        for name, distribution in trial.distributions.items():
            known = study.distributions.setdefault(name, distribution)
            if known == distribution:
                trial.distributions[name] = known
        study.trials.append(trial)
        self._trials[trial._trial_id] = (study, trial.number)
        if trial.state is TrialState.WAITING:
            study.waiting.add(trial.number)

    def _replace(self, trial: FrozenTrial) -> None:
        study, number = self._trials[trial._trial_id]
        study.trials[number] = trial
        if trial.state is not TrialState.WAITING:
            study.waiting.discard(number)

    def _writable_copy(self, trial_id: int) -> FrozenTrial:
        """The trial to be changed and put back by `_replace`; earlier readers keep what they were given."""
        trial = self.get_trial(trial_id)
        self.check_trial_is_updatable(trial_id, trial.state)
        return copy.copy(trial)

    def _changes_of(self, trial_id: int) -> TrialChanges:
        return self._changes.setdefault(trial_id, TrialChanges())

    def _write(self, trial_id: int) -> None:
        changes = self._changes_of(trial_id)

        def write(is_retry: bool) -> None:
            if not (is_retry and _has_been_written(self._database.get_trial(trial_id), changes)):
                self._writer.write(trial_id, changes)

        try:
            self._patience.call(write)
        except UpdateFinishedTrialError:
            # Another driver closed it.
            del self._changes[trial_id]
            self._replace(self._database.get_trial(trial_id))
            raise
        del self._changes[trial_id]


@dataclass
class _Study:
    trials: list[FrozenTrial] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)
    directions: list[StudyDirection] | None = None


def _running_trial(trial_id: int, number: int) -> FrozenTrial:
    return FrozenTrial(
        number=number,
        trial_id=trial_id,
        state=TrialState.RUNNING,
        value=None,
        datetime_start=datetime.datetime.now(),
        datetime_complete=None,
        params={},
        distributions={},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
    )


def _has_been_written(trial: FrozenTrial, changes: TrialChanges) -> bool:
    """True where the connection was lost between the end of a transaction and the word that it has ended."""
    attributes = (*changes.user_attrs.items(), *changes.system_attrs.items())
    known = {**trial.user_attrs, **trial.system_attrs}
    return (
        changes.state in (None, trial.state)
        and changes.params.keys() <= trial.params.keys()
        and all(name in known and known[name] == value for name, value in attributes)
    )
