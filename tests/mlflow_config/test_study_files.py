from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_config import names
from mlflow_config.errors import TrackingError
from mlflow_config.recorder import RunOutcome, StudyRecorder
from mlflow_config.settings import TrackingSettings, tracking_settings
from mlflow_config.study_files import read_study_file


@pytest.fixture
def settings(tmp_path: Path) -> TrackingSettings:
    return tracking_settings(output_dir=tmp_path, experiment="a-model")


def record(settings: TrackingSettings, study: str, study_id: str, text: str | None) -> None:
    recorder = StudyRecorder(settings, study=study, study_id=study_id)
    recorder.open()
    recorder.start_trial(0, name="0: none")
    if text is not None:
        recorder.record_study(texts={names.RESULTS_FILE: text})
    recorder.finish(RunOutcome.FINISHED)
    recorder.close()


def test_file_of_a_study_is_read_back_by_its_name_from_any_experiment(
    settings: TrackingSettings, tmp_path: Path
) -> None:
    record(settings, "mine", "1", "first")
    record(settings, "other", "2", "other")
    elsewhere = tracking_settings(output_dir=tmp_path, experiment="another experiment")
    assert read_study_file(elsewhere, "mine", names.RESULTS_FILE) == "first"


def test_of_several_studies_of_one_name_the_newest_is_read(settings: TrackingSettings) -> None:
    record(settings, "mine", "1", "old")
    record(settings, "mine", "2", "new")
    assert read_study_file(settings, "mine", names.RESULTS_FILE) == "new"


def test_study_that_was_not_tracked_is_named_with_the_store(settings: TrackingSettings) -> None:
    record(settings, "mine", "1", "text")
    with pytest.raises(TrackingError, match=r"STUDY is 'yours', but no study of that name was tracked at sqlite:"):
        read_study_file(settings, "yours", names.RESULTS_FILE)


def test_study_that_has_left_no_file_yet_is_an_error_of_one_line(settings: TrackingSettings) -> None:
    record(settings, "mine", "1", None)
    with pytest.raises(TrackingError, match=r"read results\.json") as found:
        read_study_file(settings, "mine", names.RESULTS_FILE)
    assert "\n" not in str(found.value)
