from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_config.settings import tracking_settings
from tuner.study.network_files import network_file_warning

WORDS = "on a network file system (nfs4: "


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def mounts(tmp_path: Path, runs: Path) -> Path:
    """A table of file systems that has that folder on a file server."""
    table = tmp_path / "mounts"
    table.write_text(f"/dev/sda1 / ext4 rw 0 0\nfiler:/runs {runs} nfs4 rw 0 0\n")
    return table


@pytest.mark.parametrize(
    ("storage", "tracking", "begins"),
    [
        ("sqlite:///{runs}/mine/study.db", None, "the trials and the runs of MLflow are kept"),
        ("sqlite:///{runs}/mine/study.db", "http://127.0.0.1:5000", "the trials are kept"),
        ("postgresql://u:secret@db/trials", None, "the runs of MLflow are kept"),
        ("sqlite:////var/tmp/study.db", "sqlite:///{runs}/mlflow.db", "the runs of MLflow are kept"),
    ],
)
def test_each_sqlite_file_there_is_named(
    runs: Path, mounts: Path, storage: str, tracking: str | None, begins: str
) -> None:
    uri = None if tracking is None else tracking.format(runs=runs)
    settings = tracking_settings(output_dir=runs, experiment="model", uri=uri)
    warning = network_file_warning(storage.format(runs=runs), settings, mounts)
    assert warning is not None
    assert warning.startswith(begins)
    assert WORDS in warning
    assert "secret" not in warning


def test_local_files_and_servers_are_no_matter(runs: Path, mounts: Path) -> None:
    settings = tracking_settings(output_dir=runs, experiment="model", uri="http://127.0.0.1:5000")
    assert network_file_warning("postgresql://u@db/trials", settings, mounts) is None
    assert network_file_warning("sqlite:////var/tmp/study.db", settings, mounts) is None
