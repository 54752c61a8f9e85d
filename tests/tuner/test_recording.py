from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run
from recorded_runs import recorded_runs
from simulation import MIB, failure, policy, results_of, trial

from mlflow_config.recorder import StudyRecorder
from mlflow_config.settings import tracking_settings
from runners.trial import Prediction, TrialResult, TrialStatus, Verdict, Verification
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from search_spaces.policy_reader import policy_from_dict
from tuner.recording import BegunTrial, StudyRecording
from tuner.results import StudyResults


class Study:
    """A study that is recorded as its trials end."""

    def __init__(self, folder: Path) -> None:
        self.trials: list[TrialResult] = []
        self.status = "running"
        settings = tracking_settings(output_dir=folder, experiment="a-model")
        self.recorder = StudyRecorder(settings, study="simulated", study_id="id-1")
        self.recording = StudyRecording(
            self.recorder, params={"model": "model.py:build"}, texts={"search.yaml": "study: simulated\n"}
        )

    def results(self) -> StudyResults:
        return results_of(*self.trials, status=self.status)

    def begin(self, number: int, policy: RecomputePolicy) -> None:
        begun = deque([BegunTrial(number, f"{number}: {policy.summary()}", time.time())])
        self.recording.record(begun, None)

    def end(self, result: TrialResult) -> None:
        self.trials.append(result)
        if result.detail is not None:
            self.recording.add_detail(result.trial_number, result.detail)
        self.recording.record(deque(), self.results())

    def run(self, *trials: TrialResult) -> None:
        self.recording.open()
        for result in trials:
            self.begin(result.trial_number, result.policy)
            self.end(result)

    def finish(self, status: str = "finished") -> None:
        self.status = status
        self.recording.complete(self.results(), texts={"policy.yaml": "a policy\n"}, markdown="The answer.")


@pytest.fixture
def study(tracking_database: Path) -> Iterator[Study]:
    made = Study(tracking_database.parent)
    yield made
    made.recorder.close()


@pytest.fixture
def runs(tracking_database: Path) -> Callable[[], dict[str, Run]]:
    return lambda: recorded_runs(tracking_database)


def artifact(run: Run, path: str) -> str:
    return Path(urlsplit(run.info.artifact_uri).path, path).read_text()


Runs = Callable[[], dict[str, Run]]


def test_a_trial_is_running_in_mlflow_until_it_has_ended(study: Study, runs: Runs) -> None:
    study.recording.open()
    study.begin(0, policy())
    assert (runs()["0"].info.status, runs()["0"].info.run_name) == ("RUNNING", "0: none @2x1")
    study.end(trial(0))
    assert runs()["0"].info.status == "FINISHED"


def test_a_trial_has_the_names_of_results_json(study: Study, runs: Runs) -> None:
    study.run(trial(0, "block"))
    run, record = runs()["0"], study.results().trials[0].model_dump(mode="json")
    metrics = dict(run.data.metrics)
    memory = {
        name.removeprefix("memory_bytes."): metrics.pop(name) for name in list(metrics) if "memory_bytes." in name
    }
    assert memory == record["memory_bytes"]
    proof = {name: metrics.pop(f"verification.{name}") for name in ("max_relative_error", "tolerance", "num_steps")}
    assert proof == {name: record["verification"][name] for name in proof}
    assert metrics == {name: record[name] for name in metrics}
    numbers = {n for n, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    in_params = {"micro_batch_size", "gradient_accumulation_steps", "data_parallel_degree", "global_batch_size"}
    assert numbers - metrics.keys() == in_params | {"number", "worker_pid"}
    assert {name: run.data.params[name] for name in in_params} == {name: str(record[name]) for name in in_params}
    tags = {name: run.data.tags[name] for name in ("status", "verdict", "feasible", "on_front", "is_best", "node")}
    assert tags == {
        "status": "COMPLETED",
        "verdict": "MATCH",
        "feasible": "true",
        "on_front": "true",
        "is_best": "true",
        "node": "node-1",
    }


def test_predictions_and_their_errors_can_be_sorted_by(study: Study, runs: Runs) -> None:
    prediction = Prediction(peak_memory_bytes=13 * MIB, time=0.84, time_deviation=0.02)
    study.run(trial(0, "block", prediction=prediction))
    metrics = {name: value for name, value in runs()["0"].data.metrics.items() if name.startswith("predicted")}
    # Measured were 12 MiB and 1.3 s, with 1.5 s for the reference.
    assert metrics == pytest.approx(
        {
            "predicted_peak_memory_bytes": 13 * MIB,
            "predicted_step_time_s": 1.26,
            "predicted_step_time_spread_s": 0.03,
            "predicted_peak_memory_relative_error": 1 / 12,
            "predicted_step_time_relative_error": 1.26 / 1.3 - 1,
        }
    )


def test_what_was_not_measured_is_not_there(study: Study, runs: Runs) -> None:
    study.run(failure(0, TrialStatus.FAILED, "h.0: shapes differ"))
    run = runs()["0"]
    assert run.info.status == "FAILED"
    assert run.data.metrics == {}
    assert run.data.tags["reason"] == "h.0: shapes differ"
    assert "verdict" not in run.data.tags


@pytest.mark.parametrize(
    "status, outcome",
    [
        (TrialStatus.OUT_OF_MEMORY, "FINISHED"),
        (TrialStatus.TIMED_OUT, "FAILED"),
        (TrialStatus.NODE_LOST, "FAILED"),
        (TrialStatus.CANCELLED, "KILLED"),
        (TrialStatus.FAILED, "FAILED"),
    ],
)
def test_how_a_run_ends_tells_an_answer_from_a_failure(
    study: Study, runs: Runs, status: TrialStatus, outcome: str
) -> None:
    study.run(failure(0, status, "it ended"))
    assert runs()["0"].info.status == outcome
    assert runs()["0"].data.tags["status"] == status.value


def test_tags_move_when_another_trial_takes_the_front(study: Study, runs: Runs) -> None:
    study.run(trial(0, "none", 1), trial(1, "block", 1))
    assert [runs()[name].data.tags["is_best"] for name in ("0", "1")] == ["true", "false"]
    study.end(trial(2, "mlp"))
    found = runs()
    assert [found[name].data.tags["is_best"] for name in ("0", "1", "2")] == ["false", "false", "true"]
    assert [found[name].data.tags["on_front"] for name in ("0", "1", "2")] == ["false", "true", "true"]


def test_a_policy_of_many_blocks_comes_back_whole(study: Study, runs: Runs) -> None:
    """One region per block, on a list whose path no parameter could be called."""
    regions = tuple(Region(i, i, ("attention", "mlp", "block")[i % 3]) for i in range(96))
    units = (("attention", "attn"), ("mlp", "mlp"))
    large = RecomputePolicy(BatchShape(2, 1, 1, 2), (BlockListPlacement("model[0].layers", 96, units, regions),))
    study.run(trial(0, policy=large))
    run = runs()["0"]
    assert policy_from_dict(yaml.safe_load(artifact(run, "policy.yaml"))) == large
    assert run.data.params["policy_key"] == large.key
    assert run.data.params["placement.model_0_.layers"].startswith("0-0: attention, 1-1: mlp")


def test_the_study_has_its_file_its_table_and_its_answer(
    study: Study, runs: Runs, tracking_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.run(trial(0), trial(1, "block"))
    study.finish()
    run = runs()["study"]
    assert run.info.status == "FINISHED"
    assert artifact(run, "search.yaml") == "study: simulated\n"
    assert artifact(run, "policy.yaml") == "a policy\n"
    assert run.data.params["model"] == "model.py:build"
    assert run.data.metrics == {"num_trials": 2, "num_feasible_trials": 1, "num_front_trials": 1}
    assert (run.data.tags["status"], run.data.tags["best_trial"]) == ("finished", "1")
    assert run.data.tags["mlflow.note.content"] == "The answer."
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tracking_database}")  # load_table looks there
    table = MlflowClient(f"sqlite:///{tracking_database}").load_table(
        run.info.experiment_id, "trials.json", [run.info.run_id]
    )
    assert list(table["trial"]) == [0, 1]
    assert table["reason"][0] == "its peak is 30.0% over the cap"


@pytest.mark.parametrize("status, outcome", [("interrupted", "KILLED"), ("failed", "FAILED"), ("finished", "FINISHED")])
def test_the_studys_run_ends_as_the_study_did(study: Study, runs: Runs, status: str, outcome: str) -> None:
    study.run(trial(0))
    study.begin(1, policy("block"))
    study.finish(status)
    assert runs()["study"].info.status == outcome
    assert runs()["1"].info.status == "KILLED", "nothing is left running"


def test_a_resumed_study_records_what_an_earlier_session_could_not(tracking_database: Path, runs: Runs) -> None:
    first = Study(tracking_database.parent)
    first.run(trial(0))
    first.begin(1, policy("block"))  # and there it died
    second = Study(tracking_database.parent)
    second.recording.open()
    assert runs()["1"].info.status == "KILLED", "nobody runs it any more"
    second.trials = [trial(0), failure(1, TrialStatus.CANCELLED, "interrupted", "block"), trial(2, "mlp")]
    second.run(trial(3, "block"))
    second.finish()
    found = runs()
    assert {name: run.info.status for name, run in found.items()} == {
        **dict.fromkeys(("study", "0", "2", "3"), "FINISHED"),
        "1": "KILLED",
    }
    assert found["1"].data.tags["reason"] == "interrupted"


def test_stopped_trials_are_written_once_per_session(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    record_trial = study.recorder.record_trial

    def counted(number: int, **arguments: Any) -> None:
        written.append(number)
        record_trial(number, **arguments)

    monkeypatch.setattr(study.recorder, "record_trial", counted)
    study.trials = [failure(0, TrialStatus.CANCELLED, "interrupted")]
    study.run(trial(1), trial(2, "block"))
    assert written == [0, 1, 2]


@contextlib.contextmanager
def refusing(database: Path) -> Iterator[None]:
    """The store takes no figures for a while, as with a full disk."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON metrics BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        connection.execute("CREATE TRIGGER too BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        yield
        connection.execute("DROP TRIGGER full")
        connection.execute("DROP TRIGGER too")


def test_a_store_in_trouble_is_said_once_and_made_up_for(
    study: Study, tracking_database: Path, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    study.run(trial(0))
    detailed = failure(1, TrialStatus.FAILED, "no", "mlp").model_copy(update={"detail": "Traceback ..."})
    with caplog.at_level(logging.WARNING), refusing(tracking_database):
        study.end(detailed)
        study.end(trial(2, "block"))
    assert len(caplog.messages) == 1, caplog.messages
    assert caplog.messages[0].endswith("the search goes on and records again later")
    with caplog.at_level(logging.WARNING):
        study.finish()
    assert caplog.messages[1:] == ["MLflow: recording works again"]
    assert {name: run.info.status for name, run in runs().items()} == {
        **dict.fromkeys(("study", "0", "2"), "FINISHED"),
        "1": "FAILED",
    }
    assert artifact(runs()["1"], "detail.txt") == "Traceback ..."


def test_a_store_that_is_slow_to_fail_is_not_asked_at_each_trial(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tries = [0.0], []
    monkeypatch.setattr("tuner.recording.time.monotonic", lambda: clock[0])

    def fail() -> None:
        from mlflow_config.errors import TrackingError

        tries.append(clock[0])
        clock[0] += 5.0
        raise TrackingError("the server does not answer")

    monkeypatch.setattr(study.recorder, "open", fail)
    for number in range(100):
        clock[0] += 1.0
        study.end(trial(number))
    assert tries == [1.0, 56.0]
    study.finish()
    assert len(tries) == 3, "in the end it is tried whatever it costs"


def test_proofs_are_tags_to_filter_by(study: Study, runs: Runs) -> None:
    wrong = Verification(
        verdict=Verdict.MISMATCH, reason="grad differs", worst_tensor="h.0.mlp.weight", reference="the same model"
    )
    study.run(trial(0, "block", verification=wrong))
    tags = runs()["0"].data.tags
    assert (tags["verdict"], tags["feasible"]) == ("MISMATCH", "false")
    assert tags["verification.worst_tensor"] == "h.0.mlp.weight"
    assert tags["verification.reason"] == "grad differs"
