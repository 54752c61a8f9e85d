from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

Tune = Callable[..., Result]


def test_a_port_in_use_is_one_line(tune: Tune, tracking_database: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = tune("ui", "--output-dir", tracking_database.parent, "--port", taken.getsockname()[1])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert str(taken) not in line
    assert "port" in line


def test_a_store_that_mlflow_no_longer_writes_is_one_line(tune: Tune, tmp_path: Path) -> None:
    result = tune("ui", "--output-dir", tmp_path, "--uri", "file:./mlruns")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("--uri is 'file:./mlruns'; MLflow no longer keeps new results in a folder of files.")


def test_a_folder_without_studies_is_one_line(tune: Tune, tmp_path: Path) -> None:
    result = tune("ui", "--output-dir", tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "nowhere").exists()
