from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from simulation import MIB, failure, results_of, trial

from runners.trial import TrialStatus
from tuner.results import StudyResults

Tune = Callable[..., Result]


@pytest.fixture
def other(runs: Path) -> Path:
    """A study beside `simulated` that may take more memory; its folder."""
    folder = runs / "roomy"
    folder.mkdir()
    study = results_of(trial(0), trial(1, "block"), trial(2, "mlp"), cap_bytes=30 * MIB, study="roomy")
    (folder / "results.json").write_text(study.to_json())
    return folder


def test_two_studies_side_by_side(tune: Tune, runs: Path, other: Path) -> None:
    result = tune("compare", "simulated", "roomy", "--output-dir", runs)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = {
        cells[0]: cells[1:]
        for line in result.stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    assert rows["policy"] == ["mlp @2x1", "none @2x1", ""]
    assert rows["peak memory"] == ["18.0 MiB", "26.0 MiB", "1.44"]
    assert rows["h 0-1"] == ["mlp", "none"]
    assert rows["memory_cap"] == ["20.0 MiB", "30.0 MiB"]
    assert rows["mlp @2x1"][0] == "A"
    assert rows["none @2x1"][-3:] == ["(26.0 MiB)", "26.0 MiB", "1.00"]
    assert "B's best needs 26.0 MiB, more than A's cap of 20.0 MiB." in result.stdout.splitlines()


def test_json_is_one_document(tune: Tune, runs: Path, other: Path) -> None:
    result = tune("compare", runs / "simulated", other / "results.json", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert (document["a"]["study"], document["b"]["study"], document["same"]) == ("simulated", "roomy", False)
    assert document["blocks"] == [{"blocks": "h", "first": 0, "last": 1, "a": "mlp", "b": "none"}]
    assert {fact["name"]: (fact["a"], fact["b"]) for fact in document["differences"]} == {
        "memory_cap": (20 * MIB, 30 * MIB)
    }


def test_a_study_and_itself(tune: Tune, runs: Path) -> None:
    result = tune("compare", "simulated", runs / "simulated", "--output-dir", runs)
    assert (result.exit_code, result.stdout) == (0, "A and B are the same study, simulated: every figure is equal.\n")


def test_what_weakens_it_is_a_line_of_its_own(tune: Tune, runs: Path, other: Path) -> None:
    study = results_of(trial(0, "block"), study="roomy", status="interrupted", stop_reason=None)
    (other / "results.json").write_text(study.to_json())
    result = tune("compare", "simulated", "roomy", "--output-dir", runs)
    assert result.exit_code == 0
    assert "Warning: B is interrupted: a better policy may not have been tried." in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (
            results_of(failure(0, TrialStatus.OUT_OF_MEMORY, "too large"), study="roomy"),
            "STUDY roomy (the first) has no best trial (finished, all trials were run); winners are compared",
        ),
        (None, "is not a results file of this release (Invalid JSON"),
    ],
    ids=["no-best", "unreadable"],
)
def test_what_cannot_be_compared_is_bad_input(
    tune: Tune, runs: Path, other: Path, written: StudyResults | None, line: str
) -> None:
    (other / "results.json").write_text("{" if written is None else written.to_json())
    result = tune("compare", "roomy", "simulated", "--output-dir", runs)
    assert (result.exit_code, result.stdout) == (2, "")
    (said,) = result.stderr.splitlines()
    assert line in said


def test_an_unknown_study_is_named(tune: Tune, runs: Path) -> None:
    result = tune("compare", "simulated", "simulatid", "--output-dir", runs)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("STUDY is 'simulatid', which is neither a study in ")
