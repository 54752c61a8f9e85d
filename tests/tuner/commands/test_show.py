from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from simulation import failure, results_of, run, write_search

from runners.trial import TrialStatus
from tuner.results import StudyResults

Tune = Callable[..., Result]


def test_the_front_and_what_to_make_of_it(tune: Tune, runs: Path) -> None:
    result = tune("show", "simulated", "--output-dir", runs)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].strip() == "simulated: fastest within 20.0 MiB"
    assert [line.split()[1] for line in lines if line.startswith("│")] == ["0", "1", "2", "3"]
    assert "Best within 20.0 MiB: trial 3, mlp @2x1: " in result.stdout
    assert lines[-1] == "Status: finished, all 4 trials were run."


def test_all_trials(tune: Tune, runs: Path) -> None:
    result = tune("show", "simulated", "--output-dir", runs, "--all")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].strip() == "simulated: all trials"
    assert "its peak is 30.0% over the cap" in result.stdout


def test_json_is_the_studys_own(tune: Tune, runs: Path, study: StudyResults) -> None:
    result = tune("show", str(runs / "simulated"), "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == study.to_json()
    json.loads(result.stdout)


def test_a_study_without_an_answer(tune: Tune, runs: Path) -> None:
    lost = results_of(
        failure(0, TrialStatus.CANCELLED, "the study stopped first"), status="interrupted", stop_reason=None
    )
    (runs / "simulated" / "results.json").write_text(lost.to_json())
    result = tune("show", "simulated", "--output-dir", runs)
    assert result.exit_code == 0
    assert "No trial could be measured; the first one: CANCELLED, the study stopped first." in result.stdout
    assert result.stdout.endswith("Status: interrupted.\n")


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "is not a results file of this release (Invalid JSON: EOF while parsing a value at line 1 column 0)"),
        ('{"episodes": []}', "is not a results file of this release (schema_version: Field required)"),
        ("\x00\x01binary", "is not a results file of this release (Invalid JSON"),
    ],
    ids=["empty", "foreign", "binary"],
)
def test_a_file_that_is_none_of_ours(tune: Tune, runs: Path, text: str, line: str) -> None:
    (runs / "simulated" / "results.json").write_text(text)
    result = tune("show", "simulated", "--output-dir", runs)
    assert (result.exit_code, result.stdout) == (2, "")
    (said,) = result.stderr.splitlines()
    assert f"{runs}/simulated/results.json {line}" in said


def test_a_mistyped_study(tune: Tune, runs: Path) -> None:
    result = tune("show", "simulate", "--output-dir", runs)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("STUDY is 'simulate', which is neither a study in ")
    assert "did you mean simulated?" in line


def test_a_folder_where_a_file_should_be(tune: Tune, runs: Path) -> None:
    (runs / "simulated" / "results.json").unlink()
    (runs / "simulated" / "results.json").mkdir()
    result = tune("show", "simulated", "--output-dir", runs)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


def test_a_study_of_another_machine_is_read_from_where_it_was_tracked(tune: Tune, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    outcome = run(write_search(folder))
    uri = f"sqlite:///{folder / 'runs' / 'mlflow.db'}"
    elsewhere = tmp_path / "here"
    shown = tune("show", "simulated", "--uri", uri, "--output-dir", elsewhere, "--json")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == outcome.results.to_json()
    exported = tune("export", "simulated", "--format", "policy", "--uri", uri, "--output-dir", elsewhere)
    assert exported.exit_code == 0
    assert exported.stdout == (folder / "runs/simulated/policy.yaml").read_text()
    assert not elsewhere.exists()
