"""Each mistake of `error_cases` is answered in a line that says where, what was read, what is allowed, what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from error_cases import IN_POLICY_FILES, IN_RESULTS, IN_SEARCH_FILES, ON_COMMAND_LINES, SEARCH, Mistake, write_files
from mode_mistakes import IN_MODES
from model_mistakes import IN_MODELS

Tune = Callable[..., Result]


#: What a command says before it comes to the mistake.
PROGRESS = ("building the model without data",)


def listing(folder: Path) -> list[str]:
    return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)


def check(mistake: Mistake, tune: Tune, folder: Path) -> None:
    write_files(mistake, folder)
    before = listing(folder)
    result = tune(*mistake.command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    first, *others = [line for line in result.stderr.splitlines() if line not in PROGRESS]
    for part in mistake.parts.split(" | "):
        assert part.strip() in first, (part, first)
    assert not any(line.startswith(("Traceback", " ")) for line in others)
    assert listing(folder) == before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, so that files are named as a user names them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mistake", [*IN_SEARCH_FILES, *IN_MODES], ids=lambda mistake: mistake.name)
def test_a_search_file(mistake: Mistake, tune: Tune, folder: Path) -> None:
    check(mistake, tune, folder)


@pytest.mark.parametrize("mistake", IN_POLICY_FILES, ids=lambda mistake: mistake.name)
def test_a_policy_file(mistake: Mistake, tune: Tune, folder: Path) -> None:
    check(mistake, tune, folder)


@pytest.mark.parametrize("mistake", IN_RESULTS, ids=lambda mistake: mistake.name)
def test_results(mistake: Mistake, tune: Tune, folder: Path) -> None:
    check(mistake, tune, folder)


@pytest.mark.parametrize("mistake", ON_COMMAND_LINES, ids=lambda mistake: mistake.name)
def test_a_command_line(mistake: Mistake, tune: Tune, folder: Path) -> None:
    check(mistake, tune, folder)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", IN_MODELS, ids=lambda mistake: mistake.name)
def test_a_model(mistake: Mistake, tune: Tune, folder: Path) -> None:
    check(mistake, tune, folder)


def test_ten_wrong_things_in_one_file_are_ten_lines(tune: Tune, folder: Path) -> None:
    wrong = (
        "study: a/b\nmodel: {factory: model.py:build, dtype: int7}\nbatch: {global_batch_size: 0}\nmemory_cap: 40\n"
        "search: {num_trials: many, sampler: tpee, seed: -1}\nmeasurement: {relative_spread: 2}\n"
        "runner: {device: tpu}\noutptu_dir: runs\n"
    )
    write_files(Mistake("ten", "", "", {"search.yaml": wrong}), folder)
    result = tune("run", "search.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert len(lines) == 10
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3", "4", "5", "5", "5", "6", "7", "8"]


def test_a_good_file_is_no_mistake(tune: Tune, folder: Path) -> None:
    write_files(Mistake("none", "", "", {"search.yaml": SEARCH}), folder)
    assert tune("show", "study").exit_code == 0
