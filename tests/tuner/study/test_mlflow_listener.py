from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recorded_runs import recorded_runs
from simulation import MIB, policy, results_of, trial

from mlflow_config.recorder import StudyRecorder
from mlflow_config.settings import tracking_settings
from runners.trial import TrialResult
from tuner.objective import Objective
from tuner.recording import StudyRecording
from tuner.study.mlflow_listener import MlflowListener

OBJECTIVE = Objective(memory_cap_bytes=20 * MIB)


class Study:
    """A study whose trials are told to MLflow by its listener."""

    def __init__(self, listener: Callable[[Study], MlflowListener]) -> None:
        self.trials: list[TrialResult] = []
        self.listener = listener(self)
        self.listener.open()

    def begin(self, number: int, action: str = "none") -> None:
        self.listener.started(number, policy(action))

    def end(self, number: int, action: str = "none") -> None:
        result = trial(number, action)
        self.trials.append(result)
        self.listener.finished(result, OBJECTIVE.score(result))

    def finish(self) -> None:
        self.listener.finish(texts={}, markdown="The answer.")


@pytest.fixture
def study(tracking_database: Path) -> Iterator[Study]:
    settings = tracking_settings(output_dir=tracking_database.parent, experiment="a-model")
    recorder = StudyRecorder(settings, study="simulated", study_id="id-1")
    recording = StudyRecording(recorder, params={}, texts={})
    yield Study(lambda of: MlflowListener(recording, lambda: results_of(*of.trials)))
    recorder.close()


def test_the_search_does_not_wait_for_a_store_that_is_busy(study: Study, tracking_database: Path) -> None:
    with contextlib.closing(sqlite3.connect(tracking_database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        for number, action in enumerate(("none", "block", "mlp", "attention")):
            study.begin(number, action)
            study.end(number, action)
        assert time.monotonic() - start < 1.0
        other.execute("ROLLBACK")
    study.finish()
    assert {name: run.info.status for name, run in recorded_runs(tracking_database).items()} == dict.fromkeys(
        ("study", "0", "1", "2", "3"), "FINISHED"
    )


def test_a_trial_that_is_shown_late_began_when_it_did(study: Study, tracking_database: Path) -> None:
    with contextlib.closing(sqlite3.connect(tracking_database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        before = time.time()
        study.begin(0)
        after = time.time()
        time.sleep(0.2)
        other.execute("ROLLBACK")
    study.finish()
    assert 1000 * before - 1 <= recorded_runs(tracking_database)["0"].info.start_time <= 1000 * after


def test_a_long_wait_at_the_end_is_said(
    study: Study, tracking_database: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.study.mlflow_listener._SILENT_WAIT_S", 0.05)
    other = sqlite3.connect(tracking_database, isolation_level=None, check_same_thread=False)
    with contextlib.closing(other), caplog.at_level(logging.INFO):
        other.execute("BEGIN EXCLUSIVE")
        release = threading.Timer(0.5, other.rollback)
        release.start()
        study.begin(0)
        study.finish()
        release.join()
    assert "MLflow: the last trials are still being recorded" in caplog.messages
    assert recorded_runs(tracking_database)["0"].info.status == "KILLED"
