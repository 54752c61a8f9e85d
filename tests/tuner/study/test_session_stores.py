"""The database of trials and MLflow: shared, lost, broken or out of order."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from simulated_study import WriteSearch, mlflow_runs, num_measured, study_folder
from simulation import measure, points, replay, run

from runners.trial import TrialResult, TrialSpec
from tuner.study.earlier_sessions import StudyExistsError
from tuner.study.storage import StudyStorageError


def test_a_study_goes_on_on_another_node_where_its_storage_is_shared(write_search: WriteSearch, tmp_path: Path) -> None:
    """The node of the driver is lost, and the study's folder with it."""
    shared = {"storage": f"sqlite:///{tmp_path / 'shared.db'}", "tracking": {"uri": f"sqlite:///{tmp_path / 'ml.db'}"}}
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    first = run(write_search(**shared, output_dir=here, search__num_trials=3)).results
    shutil.rmtree(here)
    resumed = run(write_search(**shared, output_dir=there, search__num_trials=5), resume=True).results
    assert (resumed.status, len(resumed.trials)) == ("finished", 5)
    assert [t.policy_key for t in resumed.trials[:3]] == [t.policy_key for t in first.trials]
    assert [t.started_at for t in resumed.trials[:3]] == [t.started_at for t in first.trials]
    assert [t.number for t in resumed.trials if t.is_baseline] == [0]
    assert (Path(there) / "simulated/policy.yaml").exists()


def test_a_shared_storage_must_hold_the_study_that_is_resumed(write_search: WriteSearch, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    with pytest.raises(
        StudyExistsError, match=r"no study simulated in .* nor in .*shared\.db.* to resume; run without"
    ):
        run(write_search(storage=storage), resume=True)
    run(write_search(storage=storage, search__num_trials=1))  # The name is free still.


def test_a_database_that_is_out_of_reach_is_one_line_without_credentials(write_search: WriteSearch) -> None:
    file = write_search(storage="postgresql://nobody:s3cret@127.0.0.1:1/x?password=s3cret")
    with pytest.raises(StudyStorageError, match=r"storage is postgresql://\*\*\*@127\.0\.0\.1:1/x") as refusal:
        run(file)
    (line,) = refusal.value.lines
    assert "\n" not in line
    assert "s3cret" not in line
    assert "nobody" not in line
    assert "correct the address, or leave it out" in line


def test_a_broken_study_db_is_named(write_search: WriteSearch, tmp_path: Path) -> None:
    file = write_search(search__num_trials=1)
    run(file)
    (study_folder(tmp_path) / "study.db").write_bytes(b"no database" * 1000)
    before = (study_folder(tmp_path) / "results.json").read_bytes()
    with pytest.raises(StudyStorageError, match=r"runs/simulated/study\.db cannot be used: file is not a database; "):
        run(file, resume=True)
    assert (study_folder(tmp_path) / "results.json").read_bytes() == before


def test_a_lost_study_db_is_made_up_for_by_the_results(
    write_search: WriteSearch, tmp_path: Path, undisturbed: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = write_search(search__num_trials=5)
    before = run(file).results
    runs_before = {r.info.run_id for r in mlflow_runs(tmp_path)}
    (study_folder(tmp_path) / "study.db").unlink()
    with caplog.at_level(logging.WARNING):
        again = run(file, resume=True).results
    assert again.trials == before.trials
    assert {r.info.run_id for r in mlflow_runs(tmp_path)} == runs_before, "MLflow has each trial once"
    (said,) = [message for message in caplog.messages if "no trials" in message]
    assert re.search(r"study\.db has no trials of study simulated any more; the 5 of .*results\.json are taken", said)
    assert points(run(write_search(), resume=True).results) == undisturbed


def test_a_lost_study_db_beside_results_that_nobody_can_read_is_refused(
    write_search: WriteSearch, tmp_path: Path
) -> None:
    file = write_search(search__num_trials=1)
    run(file)
    (study_folder(tmp_path) / "study.db").unlink()
    (study_folder(tmp_path) / "results.json").write_text("{")
    with pytest.raises(StudyExistsError, match=r"results\.json cannot be read, and .*study\.db has no trials of this"):
        run(file, resume=True)
    assert (study_folder(tmp_path) / "results.json").read_text() == "{"


def test_a_result_that_the_storage_did_not_take_is_kept(
    write_search: WriteSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of results is gone when trial 2 ends, and back when the study is resumed."""
    monkeypatch.setattr("tuner.study.storage._PATIENCE_S", 0.0)

    def rename_table(before: str, after: str) -> None:
        with contextlib.closing(sqlite3.connect(study_folder(tmp_path) / "study.db")) as connection:
            connection.execute(f"ALTER TABLE {before} RENAME TO {after}")

    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 2:
            rename_table("trial_values", "elsewhere")
        return measure(spec)

    file = write_search(search__num_trials=4)
    failed = run(file, runner=replay(outcome)).results
    assert (failed.status, len(failed.trials)) == ("failed", 3)
    assert failed.stop_reason is not None
    assert re.search(r"study\.db cannot be used: no such table: trial_values; free space", failed.stop_reason)
    rename_table("elsewhere", "trial_values")
    resumed = run(file, resume=True).results
    assert resumed.trials[:3] == failed.trials
    assert set(num_measured(tmp_path).values()) == {1}


def test_a_named_storage_serves_several_studies(write_search: WriteSearch, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    one = run(write_search(study="one", storage=storage, search__num_trials=1)).results
    two = run(write_search(study="two", storage=storage, search__num_trials=2)).results
    assert (len(one.trials), len(two.trials)) == (1, 2)
    assert not (tmp_path / "runs" / "one" / "study.db").exists()
    resumed = run(write_search(study="one", storage=storage, search__num_trials=2), resume=True).results
    assert len(resumed.trials) == 2


def test_a_study_of_the_same_name_in_a_shared_storage_is_not_joined(write_search: WriteSearch, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    run(write_search(storage=storage, search__num_trials=1))
    file = write_search(storage=storage, output_dir=str(tmp_path / "elsewhere"), tracking__uri=None)
    with pytest.raises(StudyExistsError, match=r"storage is sqlite.*shared\.db, which holds trials of a study of this"):
        run(file)
    assert not (tmp_path / "elsewhere" / "simulated").exists()


def test_mlflow_out_of_order_costs_no_trial_is_said_once_and_made_up_for(
    write_search: WriteSearch, tmp_path: Path, tracking_database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tracking_database.read_bytes()
    tracking_database.write_bytes(b"no database" * 1000)

    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 2:
            tracking_database.write_bytes(whole)
        return measure(spec)

    with caplog.at_level(logging.WARNING):
        results = run(write_search(search__num_trials=4), runner=replay(outcome)).results
    assert (results.status, len(results.trials)) == ("finished", 4)
    said = [message for message in caplog.messages if message.startswith("MLflow: ")]
    assert len(said) == 2, said
    assert said[0].endswith("the search goes on and records again later")
    assert said[1] == "MLflow: recording works again"
    trials = mlflow_runs(tmp_path, "tags.trial_number != ''")
    assert sorted(int(r.data.tags["trial_number"]) for r in trials) == [0, 1, 2, 3]
    assert {r.info.status for r in mlflow_runs(tmp_path)} == {"FINISHED"}


def test_mlflow_gone_for_good_costs_no_trial_and_a_resume_makes_up_for_it(
    write_search: WriteSearch, tmp_path: Path, tracking_database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tracking_database.read_bytes()
    tracking_database.write_bytes(b"no database" * 1000)
    file = write_search(search__num_trials=2)
    with caplog.at_level(logging.WARNING):
        results = run(file).results
    assert (results.status, len(results.trials)) == ("finished", 2)
    assert len([message for message in caplog.messages if message.startswith("MLflow: ")]) == 1
    tracking_database.write_bytes(whole)
    run(file, resume=True)
    assert len(mlflow_runs(tmp_path)) == 3


def test_a_store_named_by_the_shell_is_not_used_and_that_is_said(
    write_search: WriteSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:s3cret@127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        run(write_search(search__num_trials=1))
    assert "only search.yaml decides" in caplog.text
    assert "s3cret" not in caplog.text
    assert len(mlflow_runs(tmp_path)) == 2
