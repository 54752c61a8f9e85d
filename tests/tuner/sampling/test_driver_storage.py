from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from tuner.sampling.driver_storage import DriverStorage
from tuner.sampling.trial_database import open_database

optuna.logging.set_verbosity(optuna.logging.WARNING)

DISTRIBUTIONS: dict[str, BaseDistribution] = {
    "action": CategoricalDistribution(("none", "block")),
    "blocks": IntDistribution(1, 48),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    return str(request.getfixturevalue("new_postgresql_address")())


@pytest.fixture
def storage(url: str) -> Iterator[DriverStorage]:
    made = DriverStorage(open_database(url))
    yield made
    made.close()


def open_study(storage: optuna.storages.BaseStorage, seed: int = 0) -> optuna.Study:
    return optuna.create_study(
        study_name="study",
        storage=storage,
        sampler=optuna.samplers.NSGAIISampler(seed=seed, population_size=4),
        directions=("maximize", "minimize"),
        load_if_exists=True,
    )


def in_database(url: str) -> list[FrozenTrial]:
    return RDBStorage(url).get_all_trials(1)


def facts(trial: FrozenTrial) -> dict[str, Any]:
    """All but ids and times of day."""
    hidden = ("_trial_id", "_datetime_start", "datetime_complete", "_number")
    return {"number": trial.number, **{name: value for name, value in vars(trial).items() if name not in hidden}}


def work(study: optuna.Study) -> None:
    """Trials that end in each way, several in flight at once."""
    study.enqueue_trial({"action": "block", "blocks": 3})
    in_flight: list[optuna.Trial] = []
    for step in range(14):
        in_flight.append(study.ask(DISTRIBUTIONS))
        if step % 3:
            trial = in_flight.pop(0)
            trial.set_user_attr("result", {"status": "COMPLETED", "step": step})
            if step % 4:
                trial.set_constraint("memory", step / 10 - 1)
                study.tell(trial, [trial.params["blocks"], step])
            else:
                study.tell(trial, state=TrialState.FAIL)


def test_samplers_see_what_optunas_own_storage_shows_and_so_does_who_reads_later(
    storage: DriverStorage, url: str
) -> None:
    study, expected = open_study(storage), open_study(InMemoryStorage())
    work(study)
    work(expected)
    assert [facts(t) for t in study.trials] == [facts(t) for t in expected.trials]
    storage.flush()
    assert [facts(t) for t in in_database(url)] == [facts(t) for t in expected.trials]
    again = open_study(DriverStorage(open_database(url)))
    assert [facts(t) for t in again.trials] == [facts(t) for t in expected.trials]
    for states in ([TrialState.COMPLETE, TrialState.FAIL], [TrialState.RUNNING], [TrialState.WAITING]):
        numbers = [trial.number for trial in study.get_trials(deepcopy=False, states=states)]
        assert numbers == [trial.number for trial in expected.get_trials(deepcopy=False, states=states)]


def test_what_was_flushed_outlives_the_process(storage: DriverStorage, url: str) -> None:
    study = open_study(storage)
    trial = study.ask(DISTRIBUTIONS)
    assert in_database(url)[0].params == {}
    storage.flush()
    assert in_database(url)[0].params == trial.params


def test_a_result_is_there_exactly_when_its_trial_is_finished(storage: DriverStorage, url: str) -> None:
    study = open_study(storage)
    trial = study.ask(DISTRIBUTIONS)
    trial.set_user_attr("result", "all of it")
    trial.set_constraint("memory", 0.5)
    (before,) = in_database(url)
    assert (before.state, before.user_attrs) == (TrialState.RUNNING, {})
    study.tell(trial, [1, 2])
    (after,) = in_database(url)
    assert (after.state, after.user_attrs, after.constraints) == (
        TrialState.COMPLETE,
        {"result": "all of it"},
        {"memory": 0.5},
    )


def test_what_was_handed_out_does_not_change(storage: DriverStorage) -> None:
    study = open_study(storage)
    trial = study.ask(DISTRIBUTIONS)
    (handed_out,) = study.get_trials(deepcopy=False)
    study.tell(trial, [1, 2])
    assert (handed_out.state, handed_out.values) == (TrialState.RUNNING, None)
    assert study.get_trials(deepcopy=False)[0].state is TrialState.COMPLETE


def test_a_trial_that_another_driver_closed_refuses_and_is_read_anew(storage: DriverStorage, url: str) -> None:
    study = open_study(storage)
    trial = study.ask(DISTRIBUTIONS)
    storage.flush()
    RDBStorage(url).set_trial_state_values(trial._trial_id, TrialState.FAIL)
    trial.set_user_attr("result", "late")
    with pytest.raises(UpdateFinishedTrialError, match="finished"):
        study.tell(trial, [1, 2])
    (closed,) = study.trials
    assert (closed.state, closed.user_attrs, closed.params) == (TrialState.FAIL, {}, trial.params)
    assert in_database(url)[0].user_attrs == {}
    storage.flush()  # nothing of it is left to be written


def test_trials_of_another_driver_are_read_before_the_next_one_of_our_own(storage: DriverStorage, url: str) -> None:
    study = open_study(storage)
    study.ask(DISTRIBUTIONS)
    storage.flush()
    foreign = open_study(RDBStorage(url), seed=1).ask(DISTRIBUTIONS)
    assert study.ask(DISTRIBUTIONS).number == 2
    assert study.trials[1].params == foreign.params
    storage.flush()
    assert [trial.number for trial in in_database(url)] == [0, 1, 2]


def test_trials_share_their_distributions(storage: DriverStorage, url: str) -> None:
    work(open_study(storage))
    storage.flush()
    trials = open_study(DriverStorage(open_database(url))).get_trials(deepcopy=False)
    asked = [trial for trial in trials if trial.distributions]
    assert len(asked) > 2
    assert len({id(trial.distributions["blocks"]) for trial in asked}) == 1


def test_a_parameter_of_another_kind_is_refused(storage: DriverStorage) -> None:
    study = open_study(storage)
    study.ask(DISTRIBUTIONS)
    with pytest.raises(ValueError, match="distribution"):
        study.ask({"blocks": CategoricalDistribution(("a", "b"))})


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_closed_database_is_one_file_whole_in_itself(storage: DriverStorage, tmp_path: Path) -> None:
    work(open_study(storage))
    assert (tmp_path / "study.db-wal").exists()
    storage.close()
    storage.close()
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database:
        assert database.execute("SELECT count(*) FROM trials").fetchone() == (14,)


def test_a_deleted_study_is_gone(storage: DriverStorage, url: str) -> None:
    work(open_study(storage))
    optuna.delete_study(study_name="study", storage=storage)
    assert RDBStorage(url).get_all_studies() == []
    assert open_study(storage).trials == []
