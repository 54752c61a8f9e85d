from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from mlflow_config import names
from mlflow_config.errors import TrackingError
from mlflow_config.recorder import RunOutcome, StudyRecorder
from mlflow_config.settings import TrackingSettings, tracking_settings

OpenRecorder = Callable[..., StudyRecorder]


def _record(recorder: StudyRecorder, trial_number: int, **changes: Any) -> None:
    recorder.record_trial(
        trial_number,
        **{
            "outcome": RunOutcome.FINISHED,
            "name": f"{trial_number}: block @2x4",
            "params": {names.POLICY_KEY: f"key-{trial_number}", names.MICRO_BATCH_SIZE: 2},
            "metrics": {names.TOKENS_PER_SECOND: 100.0 + trial_number, names.PEAK_RESERVED_BYTES: None},
            "tags": {names.STATUS: "COMPLETED", names.VERDICT: "MATCH", names.FEASIBLE: True},
            **changes,
        },
    )


def _client(settings: TrackingSettings) -> MlflowClient:
    return MlflowClient(settings.uri)


def _runs(settings: TrackingSettings, search: str = "", experiment: str = "a-model") -> list[Run]:
    client = _client(settings)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id], search, order_by=["attributes.start_time ASC"]))


def _trial(settings: TrackingSettings, trial_number: int) -> Run:
    (run,) = _runs(settings, f"tags.{names.TRIAL_NUMBER} = '{trial_number}'")
    return run


def _artifact(run: Run, path: str) -> str:
    return Path(urlsplit(run.info.artifact_uri).path, path).read_text()


def test_study_has_one_run_with_its_trials_nested_in_it(
    settings: TrackingSettings, open_recorder: OpenRecorder
) -> None:
    recorder = open_recorder()
    _record(recorder, 0)
    _record(recorder, 1, outcome=RunOutcome.FAILED, tags={names.STATUS: "FAILED", names.REASON: "no such block"})
    recorder.finish(RunOutcome.FINISHED)

    (parent,) = _runs(settings, f"tags.{names.STUDY_ID} = 'id-1'")
    assert (parent.info.run_name, parent.info.status) == ("a-study", "FINISHED")
    children = _runs(settings, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    children.sort(key=lambda run: str(run.info.run_name))  # both may begin in one millisecond
    assert [(run.info.run_name, run.info.status) for run in children] == [
        ("0: block @2x4", "FINISHED"),
        ("1: block @2x4", "FAILED"),
    ]
    assert children[0].data.params == {"policy_key": "key-0", "micro_batch_size": "2"}
    assert children[0].data.metrics == {"tokens_per_second": 100.0}
    assert children[1].data.tags[names.REASON] == "no such block"
    assert children[1].data.tags[names.STUDY] == "a-study"


def test_trials_are_found_and_sorted_by_mlflow_itself(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    for trial_number in range(4):
        _record(recorder, trial_number, tags={names.ON_FRONT: trial_number % 2 == 1})
    found = _client(settings).search_runs(
        [recorder.experiment_id], "tags.on_front = 'true'", order_by=["metrics.tokens_per_second DESC"]
    )
    assert [run.data.tags[names.TRIAL_NUMBER] for run in found] == ["3", "1"]


def test_trial_keeps_the_times_it_ran_at(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    _record(open_recorder(), 0, started_at_s=1_700_000_000.0, ended_at_s=1_700_000_042.5)
    info = _trial(settings, 0).info
    assert (info.start_time, info.end_time) == (1_700_000_000_000, 1_700_000_042_500)


def test_started_trial_is_running_until_recorded(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    recorder.start_trial(0, name="0: block @2x4")
    assert _trial(settings, 0).info.status == "RUNNING"
    _record(recorder, 0)
    run = _trial(settings, 0)
    assert run.info.status == "FINISHED"
    assert run.data.tags[names.STATUS] == "COMPLETED"


def test_resumed_study_finds_its_run_and_its_trials(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    first = open_recorder()
    _record(first, 0)
    first.finish(RunOutcome.KILLED)

    second = open_recorder()
    assert second.run_id == first.run_id
    assert second.is_recorded(0)
    assert _client(settings).get_run(second.run_id).info.status == "RUNNING"
    _record(second, 1)
    assert len(_runs(settings)) == 3


def test_recording_a_trial_again_changes_nothing(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    _record(recorder, 0, ended_at_s=1_700_000_000.0)
    before = _trial(settings, 0).to_dictionary()
    for again in (recorder, open_recorder()):
        _record(again, 0, params={names.POLICY_KEY: "another"}, metrics={names.TOKENS_PER_SECOND: 7.0})
    assert _trial(settings, 0).to_dictionary() == before


def test_trial_that_was_half_written_is_completed(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    first = open_recorder()
    first.start_trial(0, name="0: block @2x4")
    client, run_id = _client(settings), _trial(settings, 0).info.run_id
    client.log_param(run_id, names.POLICY_KEY, "written before the driver died")

    second = open_recorder()
    assert not second.is_recorded(0)
    _record(second, 0)
    run = _trial(settings, 0)
    assert run.data.params == {"policy_key": "written before the driver died", "micro_batch_size": "2"}
    assert run.info.status == "FINISHED"


def test_metric_is_one_value_however_often_it_is_written(
    settings: TrackingSettings, open_recorder: OpenRecorder
) -> None:
    recorder = open_recorder()
    _record(recorder, 0, outcome=RunOutcome.KILLED)
    _record(recorder, 0, outcome=RunOutcome.FINISHED)
    run = _trial(settings, 0)
    history = _client(settings).get_metric_history(run.info.run_id, names.TOKENS_PER_SECOND)
    assert [metric.value for metric in history] == [100.0]
    assert run.info.status == "FINISHED"


def test_runs_of_a_dead_driver_are_closed_and_can_be_recorded(
    settings: TrackingSettings, open_recorder: OpenRecorder
) -> None:
    dead = open_recorder()
    _record(dead, 0)
    dead.start_trial(5, name="5: mlp @4x2")

    resumed = open_recorder()
    assert resumed.close_stale_runs("interrupted") == (5,)
    run = _trial(settings, 5)
    assert run.info.status == "KILLED"
    assert (run.data.tags[names.STATUS], run.data.tags[names.REASON]) == ("CANCELLED", "interrupted")
    assert run.info.end_time >= run.info.start_time
    assert [resumed.is_recorded(number) for number in (0, 5)] == [True, False]
    assert resumed.close_stale_runs("interrupted") == ()

    _record(resumed, 5)
    run = _trial(settings, 5)
    assert (run.info.status, run.data.tags[names.STATUS]) == ("FINISHED", "COMPLETED")


def test_finish_leaves_no_run_running(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    recorder.start_trial(0, name="0: none @1x8")
    recorder.finish(RunOutcome.KILLED)
    assert [run.info.status for run in _runs(settings)] == ["KILLED", "KILLED"]


def test_policy_too_long_for_a_parameter_can_be_rebuilt_from_the_run(
    settings: TrackingSettings, open_recorder: OpenRecorder
) -> None:
    policy = json.dumps({"regions": [{"first": block, "last": block, "action": "attention"} for block in range(200)]})
    _record(open_recorder(), 0, params={"policy": policy, names.placement_param("blocks[0].h"): "attention"})
    run = _trial(settings, 0)
    assert len(policy) > 6000
    assert _artifact(run, "params/policy.txt") == policy
    assert run.data.params["policy"].startswith(policy[:200])
    assert run.data.params["placement.blocks_0_.h"] == "attention"


def test_more_entries_than_one_batch_holds_are_all_kept(
    settings: TrackingSettings, open_recorder: OpenRecorder
) -> None:
    _record(
        open_recorder(),
        0,
        params={f"p{index}": index for index in range(230)},
        metrics={f"m{index}": index for index in range(900)},
        tags={f"t{index}": index for index in range(130)},
    )
    data = _trial(settings, 0).data
    assert (len(data.params), len(data.metrics)) == (230, 900)
    assert data.tags["t129"] == "129"


def test_tags_of_a_trial_follow_the_front(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    _record(recorder, 0, tags={names.ON_FRONT: True, names.IS_BEST: True})
    recorder.update_trial_tags(0, {names.ON_FRONT: True, names.IS_BEST: False})
    resumed = open_recorder()
    resumed.update_trial_tags(0, {names.ON_FRONT: False})
    tags = _trial(settings, 0).data.tags
    assert (tags[names.ON_FRONT], tags[names.IS_BEST]) == ("false", "false")


def test_tag_that_is_so_already_is_not_written(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    _record(recorder, 0, tags={names.ON_FRONT: False})
    _client(settings).set_tag(_trial(settings, 0).info.run_id, names.ON_FRONT, "changed behind our back")
    recorder.update_trial_tags(0, {names.ON_FRONT: False})
    assert _trial(settings, 0).data.tags[names.ON_FRONT] == "changed behind our back"


def test_unknown_trial_cannot_be_tagged(open_recorder: OpenRecorder) -> None:
    with pytest.raises(TrackingError, match=r"^trial 3 of a-study has no run to tag; record the trial first$"):
        open_recorder().update_trial_tags(3, {names.ON_FRONT: True})


def test_study_shows_its_answer_and_its_files(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    recorder.record_study(params={names.SEED: 0}, texts={names.SEARCH_FILE: "study: a\n", names.FRONT_FILE: "<p>1"})
    recorder.describe_study("**Best: trial 3, none @2x4**")
    resumed = open_recorder()
    resumed.record_study(
        params={names.SEED: 9, names.SAMPLER: "tpe"}, metrics={names.NUM_TRIALS: 4}, texts={names.FRONT_FILE: "<p>2"}
    )
    run = _client(settings).get_run(recorder.run_id)
    assert run.data.tags["mlflow.note.content"] == "**Best: trial 3, none \\@2x4**"
    assert run.data.params == {names.SEED: "0", names.SAMPLER: "tpe"}
    assert run.data.metrics == {names.NUM_TRIALS: 4.0}
    assert _artifact(run, names.SEARCH_FILE) == "study: a\n"
    assert _artifact(run, names.FRONT_FILE) == "<p>2"


def test_table_is_replaced_and_read_as_mlflows_own(
    settings: TrackingSettings, open_recorder: OpenRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", settings.uri)  # load_table looks there, whatever its client is for
    open_recorder().record_table(names.TRIALS_FILE, ["trial", "verdict"], [[0, "MATCH"]])
    recorder = open_recorder()
    recorder.record_table(names.TRIALS_FILE, ["trial", "verdict"], [[0, "MATCH"], [1, None]])
    table = _client(settings).load_table(recorder.experiment_id, names.TRIALS_FILE, [recorder.run_id])
    assert table.columns.tolist() == ["trial", "verdict"]
    assert table["trial"].tolist() == [0, 1]
    tag = _client(settings).get_run(recorder.run_id).data.tags["mlflow.loggedArtifacts"]
    assert json.loads(tag) == [{"path": names.TRIALS_FILE, "type": "table"}]


def test_two_studies_share_a_store(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    one, two = open_recorder("id-1", study="one"), open_recorder("it's id-2", study="two")
    _record(one, 0)
    _record(two, 0)
    two.start_trial(1, name="1: none @1x8")
    assert one.close_stale_runs("interrupted") == ()
    assert one.run_id != two.run_id
    assert [one.is_recorded(number) for number in (0, 1)] == [True, False]
    assert open_recorder("it's id-2").run_id == two.run_id
    assert one.experiment_id == two.experiment_id


def test_new_experiment_explains_itself(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    experiment = _client(settings).get_experiment(open_recorder().experiment_id)
    assert "tags.on_front = 'true'" in experiment.tags["mlflow.note.content"]
    assert "mlflow.sharedViewState.trials" in experiment.tags
    assert experiment.artifact_location == f"{settings.artifact_root}/a-model"


def test_deleted_experiment_is_named(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    experiment_id = open_recorder().experiment_id
    _client(settings).delete_experiment(experiment_id)
    with pytest.raises(
        TrackingError, match=rf"'a-model', which was deleted .* `mlflow experiments restore -x {experiment_id}`"
    ):
        open_recorder()


def test_trial_whose_run_was_deleted_is_refused(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    recorder.start_trial(0, name="0: block @2x4")
    _client(settings).delete_run(_trial(settings, 0).info.run_id)
    with pytest.raises(TrackingError, match=r"^cannot write a run in .*must be in the 'active' state"):
        _record(recorder, 0)


def test_trial_shown_late_began_when_it_did(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    open_recorder().start_trial(0, name="0: block @2x4", started_at_s=1_700_000_000.5)
    assert _trial(settings, 0).info.start_time == 1_700_000_000_500


def test_variable_of_the_shell_does_not_redirect(
    settings: TrackingSettings, open_recorder: OpenRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    recorder = open_recorder()
    _record(recorder, 0, texts={names.DETAIL_FILE: "long story"})
    assert _artifact(_trial(settings, 0), names.DETAIL_FILE) == "long story"


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
def test_locked_database_delays_and_loses_nothing(settings: TrackingSettings, open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    assert settings.sqlite_path is not None
    other = sqlite3.connect(settings.sqlite_path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(2.0, other.rollback)
    release.start()
    started = time.monotonic()
    _record(recorder, 0)
    assert time.monotonic() - started > 1.5
    release.join()
    other.close()
    assert _trial(settings, 0).data.metrics == {"tokens_per_second": 100.0}


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
def test_trouble_is_one_error_and_the_trial_can_be_recorded_later(
    settings: TrackingSettings, open_recorder: OpenRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    recorder = open_recorder()
    assert settings.sqlite_path is not None
    with contextlib.closing(sqlite3.connect(settings.sqlite_path)) as database:
        database.execute("ALTER TABLE metrics RENAME TO metrics_elsewhere")
        database.commit()
        capfd.readouterr()
        with pytest.raises(
            TrackingError, match=r"^cannot write a run in sqlite:.*no such table: metrics.*Nothing measured is lost"
        ) as caught:
            _record(recorder, 0)
        assert "\n" not in str(caught.value)
        assert capfd.readouterr().err == ""
        database.execute("ALTER TABLE metrics_elsewhere RENAME TO metrics")
        database.commit()
    assert not recorder.is_recorded(0)
    _record(recorder, 0)
    assert recorder.is_recorded(0)
    assert _trial(settings, 0).data.metrics == {"tokens_per_second": 100.0}
    assert len(_runs(settings)) == 2


def test_recorder_must_be_open(settings: TrackingSettings) -> None:
    recorder = StudyRecorder(settings, study="a-study", study_id="id-1")
    with pytest.raises(TrackingError, match=r"^the recorder is not open; open it before recording$"):
        _record(recorder, 0)
    recorder.close()


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
def test_closed_database_file_is_whole_in_itself(
    settings: TrackingSettings, open_recorder: OpenRecorder, tmp_path: Path
) -> None:
    recorder = open_recorder()
    _record(recorder, 0)
    recorder.close()
    recorder.close()
    assert settings.sqlite_path is not None
    copy = tmp_path / "copy.db"
    copy.write_bytes(settings.sqlite_path.read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (2,)


def test_memory_of_recorded_trials_stays_small(open_recorder: OpenRecorder) -> None:
    recorder = open_recorder()
    _record(recorder, 0, tags={names.REASON: "x" * 4000, names.FEASIBLE: True})
    kept = recorder._trial_runs()[0]
    assert kept.tags == {names.FEASIBLE: "true"}


_SCRIPT = """
import sys
from pathlib import Path
import mlflow_config.recorder as recording
from mlflow_config.settings import tracking_settings
assert "mlflow" not in sys.modules, "MLflow was imported before it was used"
recorder = recording.StudyRecorder(
    tracking_settings(output_dir=Path("runs"), experiment="new"), study="s", study_id="id"
)
recorder.open()
recorder.start_trial(0, name="0")
recorder.finish(recording.RunOutcome.FINISHED)
recorder.close()
"""


def test_new_store_is_made_without_a_word_and_without_litter(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlflow.db"]
    assert len(_runs(tracking_settings(output_dir=tmp_path / "runs", experiment="new"), experiment="new")) == 2
