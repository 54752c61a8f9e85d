from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tuner.sampling.trial_database import open_database
from tuner.sampling.trial_writer import CallWriter, TableWriter, TrialChanges, TrialWriter, trial_writer

optuna.logging.set_verbosity(optuna.logging.WARNING)

ACTION = CategoricalDistribution(("none", "block"))
BLOCKS = IntDistribution(1, 48)
MakeWriter = Callable[[RDBStorage], TrialWriter]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RDBStorage]:
    if request.param == "sqlite":
        database = open_database(f"sqlite:///{tmp_path / 'study.db'}")
    else:
        database = open_database(request.getfixturevalue("new_postgresql_address")())
    yield database
    database.engine.dispose()


@pytest.fixture
def study_id(database: RDBStorage) -> int:
    return database.create_new_study([StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE], "study")


@pytest.fixture(params=[CallWriter, TableWriter])
def writer(request: pytest.FixtureRequest, database: RDBStorage) -> TrialWriter:
    make: MakeWriter = request.param
    return make(database)


def read(database: RDBStorage, study_id: int) -> list[FrozenTrial]:
    return database.get_all_trials(study_id)


def test_the_tables_of_the_installed_optuna_are_known(database: RDBStorage) -> None:
    """Else every trial costs ten times as much: look at what changed in Optuna's tables, then at `TableWriter`."""
    assert isinstance(trial_writer(database), TableWriter)


def test_a_database_of_another_revision_is_written_by_optunas_own_calls(
    database: RDBStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.sampling.trial_writer.KNOWN_REVISION", "v9")
    assert isinstance(trial_writer(database), CallWriter)


def test_a_trial_reads_as_if_optuna_had_written_it(writer: TrialWriter, database: RDBStorage, study_id: int) -> None:
    before = datetime.datetime.now()
    trial_id, number = writer.create(study_id, after=-1, num_before=0)
    writer.write(trial_id, TrialChanges({"action": (1.0, ACTION), "blocks": (7.0, BLOCKS)}, {}, {"generation": 3}))
    (running,) = read(database, study_id)
    assert number == 0
    assert (running.number, running.state, running._trial_id) == (0, TrialState.RUNNING, trial_id)
    assert running.params == {"action": "block", "blocks": 7}
    assert running.distributions == {"action": ACTION, "blocks": BLOCKS}

    result = {"status": "COMPLETED", "peak": None, "times": [0.1, 2]}
    constraints = {"constraints:memory": -0.25}
    writer.write(trial_id, TrialChanges({}, {"result": result}, constraints, TrialState.COMPLETE, [1.5, 2.0**40]))
    (done,) = read(database, study_id)
    assert (done.state, done.values, done.params) == (TrialState.COMPLETE, [1.5, 2.0**40], running.params)
    assert (done.user_attrs, done.system_attrs) == ({"result": result}, {"generation": 3, **constraints})
    assert done.datetime_start is not None
    assert done.datetime_complete is not None
    assert before <= done.datetime_start <= done.datetime_complete <= datetime.datetime.now()


def test_numbers_count_the_trials_of_the_study(writer: TrialWriter, database: RDBStorage, study_id: int) -> None:
    other = database.create_new_study([StudyDirection.MAXIMIZE], "another")
    first, number = writer.create(study_id, after=-1, num_before=0)
    assert number == 0
    writer.create(other, after=-1, num_before=0)
    database.create_new_trial(study_id)  # by another driver
    assert writer.create(study_id, after=first, num_before=1)[1] == 2
    assert [trial.number for trial in read(database, study_id)] == [0, 1, 2]


def test_an_attribute_is_replaced(writer: TrialWriter, database: RDBStorage, study_id: int) -> None:
    trial_id, _ = writer.create(study_id, after=-1, num_before=0)
    writer.write(trial_id, TrialChanges(user_attrs={"a": 1, "b": 1}))
    writer.write(trial_id, TrialChanges(user_attrs={"a": 2}))
    assert read(database, study_id)[0].user_attrs == {"a": 2, "b": 1}


def test_infinite_values_come_back(writer: TrialWriter, database: RDBStorage, study_id: int) -> None:
    trial_id, _ = writer.create(study_id, after=-1, num_before=0)
    writer.write(trial_id, TrialChanges(state=TrialState.COMPLETE, values=[math.inf, -math.inf]))
    assert read(database, study_id)[0].values == [math.inf, -math.inf]


def test_an_enqueued_trial_begins_when_it_is_taken(writer: TrialWriter, database: RDBStorage, study_id: int) -> None:
    waiting = optuna.trial.create_trial(state=TrialState.WAITING)
    trial_id = database.create_new_trial(study_id, waiting)
    writer.write(trial_id, TrialChanges(state=TrialState.RUNNING))
    (trial,) = read(database, study_id)
    assert trial.state is TrialState.RUNNING
    assert trial.datetime_start is not None


@pytest.mark.parametrize("state", [None, TrialState.COMPLETE], ids=["attributes", "an end"])
def test_a_finished_trial_takes_nothing_more(
    writer: TrialWriter, database: RDBStorage, study_id: int, state: TrialState | None
) -> None:
    trial_id, _ = writer.create(study_id, after=-1, num_before=0)
    database.set_trial_state_values(trial_id, TrialState.FAIL)
    with pytest.raises(UpdateFinishedTrialError, match=r"[Tt]rial"):
        writer.write(trial_id, TrialChanges(user_attrs={"result": 1}, state=state))
    (trial,) = read(database, study_id)
    assert (trial.state, trial.user_attrs) == (TrialState.FAIL, {})
