"""Writes a trial to Optuna's database in one transaction per step of its life, where Optuna itself takes a dozen."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import sqlalchemy
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

#: Revision of Optuna's tables that `TableWriter` knows; Optuna changes it with every change of a table.
KNOWN_REVISION = "v3.2.0.a"
_TABLES = ("studies", "trials", "trial_params", "trial_values", "trial_user_attributes", "trial_system_attributes")
_UNFINISHED = ("RUNNING", "WAITING")


@dataclass
class TrialChanges:
    """What was set on a trial and is not in the database yet.

    Attributes:
        params: Name to value in Optuna's internal representation, and distribution.
        state: The trial's next state; None leaves it as it is.
        values: Of the objectives.
    """

    params: dict[str, tuple[float, BaseDistribution]] = field(default_factory=dict)
    user_attrs: dict[str, Any] = field(default_factory=dict)
    system_attrs: dict[str, Any] = field(default_factory=dict)
    state: TrialState | None = None
    values: Sequence[float] | None = None


class TrialWriter(Protocol):
    """Puts trials into the database; what a call has written outlives the process."""

    def create(self, study_id: int, *, after: int, num_before: int) -> tuple[int, int]:
        """A new running trial: its id and its number.

        Args:
            after: Id of the last known trial of the study; -1 where there is none.
            num_before: Trials of the study up to that one.
        """

    def write(self, trial_id: int, changes: TrialChanges) -> None:
        """Writes all changes, the state last.

        Raises:
            UpdateFinishedTrialError: The trial is finished in the database.
        """


def trial_writer(database: RDBStorage) -> TrialWriter:
    """The fast writer where the database has the tables it knows, else Optuna's own calls."""
    if database.get_current_version() == KNOWN_REVISION:
        return TableWriter(database)
    return CallWriter(database)


class CallWriter:
    """By Optuna's own calls, each a transaction: about 20 ms per trial on SQLite."""

    def __init__(self, database: RDBStorage) -> None:
        self._database = database

    def create(self, study_id: int, *, after: int, num_before: int) -> tuple[int, int]:
        trial_id = self._database.create_new_trial(study_id)
        return trial_id, self._database.get_trial_number_from_id(trial_id)

    def write(self, trial_id: int, changes: TrialChanges) -> None:
        for name, (value, distribution) in changes.params.items():
            self._database.set_trial_param(trial_id, name, value, distribution)
        for key, attribute in changes.user_attrs.items():
            self._database.set_trial_user_attr(trial_id, key, attribute)
        for key, attribute in changes.system_attrs.items():
            self._database.set_trial_system_attr(trial_id, key, attribute)
        if changes.state is not None:
            self._database.set_trial_state_values(trial_id, changes.state, changes.values)


class TableWriter:
    """Straight into Optuna's tables: about 2 ms per trial on SQLite."""

    def __init__(self, database: RDBStorage) -> None:
        self._engine = database.engine
        metadata = sqlalchemy.MetaData()
        metadata.reflect(self._engine, only=_TABLES)
        self._studies, self._trials, self._params, self._values, self._user_attrs, self._system_attrs = (
            metadata.tables[name] for name in _TABLES
        )

    def create(self, study_id: int, *, after: int, num_before: int) -> tuple[int, int]:
        trials = self._trials
        with self._engine.begin() as connection:
            # Databases with row locks: another driver must not count the same trials. On SQLite the insert locks.
            connection.execute(
                sqlalchemy.select(self._studies.c.study_id)
                .where(self._studies.c.study_id == study_id)
                .with_for_update()
            )
            row = {"study_id": study_id, "state": TrialState.RUNNING.name, "datetime_start": _now()}
            key = connection.execute(sqlalchemy.insert(trials), row).inserted_primary_key
            assert key is not None, "one row was inserted"
            trial_id = key[0]
            unknown = (trials.c.study_id == study_id, trials.c.trial_id > after, trials.c.trial_id < trial_id)
            count = sqlalchemy.select(sqlalchemy.func.count()).where(*unknown)
            number = num_before + connection.execute(count).scalar_one()
            connection.execute(sqlalchemy.update(trials).where(trials.c.trial_id == trial_id), {"number": number})
        return int(trial_id), int(number)

    def write(self, trial_id: int, changes: TrialChanges) -> None:
        with self._engine.begin() as connection:
            self._set_state(connection, trial_id, changes.state)
            self._insert(connection, self._params, (_param(trial_id, *param) for param in changes.params.items()))
            self._replace(connection, self._user_attrs, trial_id, changes.user_attrs)
            self._replace(connection, self._system_attrs, trial_id, changes.system_attrs)
            self._insert(
                connection,
                self._values,
                (_value(trial_id, index, value) for index, value in enumerate(changes.values or ())),
            )

    def _set_state(self, connection: sqlalchemy.Connection, trial_id: int, state: TrialState | None) -> None:
        """First of all, so that nothing is written to a trial that is finished."""
        trials = self._trials
        is_open = (trials.c.trial_id == trial_id, trials.c.state.in_(_UNFINISHED))
        if state is None:
            found = connection.execute(sqlalchemy.select(trials.c.trial_id).where(*is_open)).first() is not None
        else:
            moment = "datetime_complete" if state.is_finished() else "datetime_start"
            row = {"state": state.name, moment: _now()}
            found = connection.execute(sqlalchemy.update(trials).where(*is_open), row).rowcount == 1
        if not found:
            raise UpdateFinishedTrialError(f"trial with id {trial_id} is finished; nothing more can be set on it")

    def _replace(
        self, connection: sqlalchemy.Connection, table: sqlalchemy.Table, trial_id: int, attributes: Mapping[str, Any]
    ) -> None:
        if attributes:
            old = (table.c.trial_id == trial_id, table.c.key.in_(list(attributes)))
            connection.execute(sqlalchemy.delete(table).where(*old))
        rows = ({"trial_id": trial_id, "key": key, "value_json": json.dumps(v)} for key, v in attributes.items())
        self._insert(connection, table, rows)

    def _insert(
        self, connection: sqlalchemy.Connection, table: sqlalchemy.Table, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        listed = list(rows)
        if listed:
            connection.execute(sqlalchemy.insert(table), listed)


def _param(trial_id: int, name: str, value: tuple[float, BaseDistribution]) -> dict[str, Any]:
    internal, distribution = value
    return {
        "trial_id": trial_id,
        "param_name": name,
        "param_value": internal,
        "distribution_json": distribution_to_json(distribution),
    }


def _value(trial_id: int, objective: int, value: float) -> dict[str, Any]:
    """Infinity has no place in some databases' columns of numbers."""
    row = {"trial_id": trial_id, "objective": objective}
    if math.isinf(value):
        return {**row, "value": None, "value_type": "INF_POS" if value > 0 else "INF_NEG"}
    return {**row, "value": value, "value_type": "FINITE"}


def _now() -> datetime.datetime:
    """As Optuna stores it: without a time zone, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
