from __future__ import annotations

from pathlib import Path

import pytest
from simulation import results_of, trial

from tuner.results_file import ResultsError
from tuner.studies import find_study


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for study in ("gpt2-12l", "bert-base"):
        folder = tmp_path / "runs" / study
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(results_of(trial(0), study=study).to_json())
    return tmp_path / "runs"


def test_a_study_is_found_by_its_name(runs: Path) -> None:
    folder, results = find_study("gpt2-12l", output_dir=runs)
    assert (folder, results.study) == (runs / "gpt2-12l", "gpt2-12l")


@pytest.mark.parametrize("ending", ["", "/", "/results.json"])
def test_a_study_is_found_by_its_folder(runs: Path, ending: str) -> None:
    folder, results = find_study(f"{runs}/bert-base{ending}", output_dir=Path("elsewhere"))
    assert (folder, results.study) == (runs / "bert-base", "bert-base")


def test_a_folder_of_the_same_name_that_is_no_study_does_not_hide_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bert-base").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_study("bert-base", output_dir=Path("runs"))[1].study == "bert-base"


def test_a_mistyped_name_is_answered_with_the_nearest(runs: Path) -> None:
    with pytest.raises(
        ResultsError, match=r"STUDY is 'gtp2-12l', .*\(studies there: bert-base, gpt2-12l\); did you mean gpt2-12l\?"
    ):
        find_study("gtp2-12l", output_dir=runs)


def test_where_there_is_no_study_none_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"'any', .*\(studies there: none\); name one, or its folder") as refusal:
        find_study("any", output_dir=tmp_path / "nowhere")
    assert "did you mean" not in str(refusal.value)


def test_a_name_that_is_too_long_for_any_file_is_no_study(runs: Path) -> None:
    with pytest.raises(ResultsError, match=r"STUDY is 'x{57}\.\.\.', which is neither a study in"):
        find_study("x" * 5000, output_dir=runs)
    with pytest.raises(ResultsError, match=r"STUDY is 'any', which is neither .*\(studies there: none\)"):
        find_study("any", output_dir=Path("x" * 5000))


@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_results_that_are_no_file_are_said_to_be_none(runs: Path, kind: str) -> None:
    (runs / "odd").mkdir()
    if kind == "folder":
        (runs / "odd" / "results.json").mkdir()
    else:
        (runs / "odd" / "results.json").symlink_to("results.json")
    with pytest.raises(ResultsError, match=r"odd/results\.json is not a file"):
        find_study("odd", output_dir=runs)
