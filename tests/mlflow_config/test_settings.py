from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_config.settings import TrackingSettings, hide_password, ignored_environment, tracking_settings


def test_default_is_one_file_for_all_studies_under_output_dir(tmp_path: Path) -> None:
    settings = tracking_settings(output_dir=tmp_path, experiment="gpt2")
    assert settings.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert settings.sqlite_path == tmp_path / "mlflow.db"
    assert settings.artifact_root == f"file://{tmp_path}/mlflow-artifacts"
    assert settings.experiment == "gpt2"
    assert not settings.is_server


def test_relative_output_dir_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_settings(output_dir=Path("runs"), experiment="e").sqlite_path == tmp_path / "runs" / "mlflow.db"


def test_own_sqlite_file_keeps_its_artifacts_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tracking_settings(output_dir=Path("runs"), experiment="e", uri="sqlite:///shared/all.db?timeout=9")
    assert settings.uri == f"sqlite:///{tmp_path}/shared/all.db?timeout=9"
    assert settings.sqlite_path == tmp_path / "shared" / "all.db"
    assert settings.artifact_root == f"file://{tmp_path}/shared/mlflow-artifacts"


def test_server_keeps_artifacts_itself() -> None:
    settings = tracking_settings(output_dir=Path("runs"), experiment="e", uri="https://mlflow.example.org/")
    assert (settings.uri, settings.artifact_root) == ("https://mlflow.example.org", None)
    assert settings.is_server
    assert settings.sqlite_path is None


def test_database_server_keeps_artifacts_under_output_dir(tmp_path: Path) -> None:
    settings = tracking_settings(output_dir=tmp_path, experiment="e", uri="postgresql+psycopg2://me:pw@db/mlflow")
    assert settings.uri == "postgresql+psycopg2://me:pw@db/mlflow"
    assert settings.shown_uri == "postgresql+psycopg2://me:***@db/mlflow"
    assert settings.artifact_root == f"file://{tmp_path}/mlflow-artifacts"


@pytest.mark.parametrize("uri", ["./mlruns", "file:./mlruns", "file:///data/mlruns", "mlruns", "s3://bucket/x", ""])
def test_folder_of_files_is_refused_with_its_replacement(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^tracking.uri is '.*'; .* is allowed\. Write sqlite:///.*mlflow\.db, or"):
        tracking_settings(output_dir=tmp_path, experiment="e", uri=uri)


def test_bare_database_file_is_refused_with_its_address() -> None:
    with pytest.raises(ValueError, match=r"Write sqlite:///results/all\.db, or"):
        tracking_settings(output_dir=Path("runs"), experiment="e", uri="results/all.db")


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"])
def test_results_in_memory_are_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"tracking.uri is '.*'; results in memory would be gone"):
        tracking_settings(output_dir=Path("runs"), experiment="e", uri=uri)


@pytest.mark.parametrize("folder", ["100%", "what?"])
def test_folder_that_an_address_cannot_hold_is_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^output_dir leads to '.*'; the address of a database cannot hold"):
        tracking_settings(output_dir=tmp_path / folder, experiment="e")


def test_experiment_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^tracking.experiment is ' '; a name is expected"):
        tracking_settings(output_dir=tmp_path, experiment=" ")


def test_variable_of_the_shell_is_ignored_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@elsewhere:5000")
    settings = tracking_settings(output_dir=tmp_path, experiment="e")
    assert settings.sqlite_path == tmp_path / "mlflow.db"
    said = ignored_environment(settings)
    assert said is not None
    assert said.startswith("MLFLOW_TRACKING_URI is http://me:***@elsewhere:5000, but the study is recorded in sqlite:")


@pytest.mark.parametrize("variable", [None, "", "http://host:5000/"])
def test_variable_that_names_the_same_store_is_not_mentioned(
    variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if variable is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    assert ignored_environment(TrackingSettings("http://host:5000", "e", None)) is None


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("mysql://me:p@ss@host:3306/db", "mysql://me:***@host:3306/db"),
        ("https://token@host/x", "https://token@host/x"),
        ("sqlite:////tmp/a@b:c.db", "sqlite:////tmp/a@b:c.db"),
    ],
)
def test_hide_password(uri: str, shown: str) -> None:
    assert hide_password(uri) == shown
