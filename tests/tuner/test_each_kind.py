from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from simulation import INSPECTION, measure

from runners.replay_runner import ReplayRunner
from tuner import assemble
from tuner.each_kind import each_kind
from tuner.search_file.load import load_search_file

WriteSearch = Callable[..., Path]
Tune = Callable[..., Result]
KINDS = ("A100-SXM4", "H100")


class KindsRunner(ReplayRunner):
    """A cluster of several kinds, all of them simulated alike; one such runner stands for those of all studies."""

    def __init__(self, kinds: Sequence[str] = KINDS) -> None:
        super().__init__(measure, inspection=INSPECTION)
        self._kinds = kinds

    def kinds(self) -> Sequence[str]:
        return self._kinds

    def on_kind(self, kind: str) -> KindsRunner:
        return self

    def close(self) -> None:
        self.cancel()


@pytest.fixture
def search(write_search: WriteSearch) -> Callable[..., Path]:
    def write(kind: str = "all", **changes: Any) -> Path:
        return write_search(search__num_trials=2, runner__accelerator_type=kind, **changes)

    return write


def test_each_kind_has_a_study_of_its_own(tune: Tune, search: Callable[..., Path], tmp_path: Path) -> None:
    result = tune("run", search(), runner=KindsRunner())
    assert result.exit_code == 0
    for kind in KINDS:
        results = json.loads((tmp_path / "runs" / f"simulated-{kind}" / "results.json").read_text())
        assert results["search"]["runner"]["accelerator_type"] == kind
    assert "H100: study simulated-H100\n" in result.stdout
    assert result.stdout.endswith("Side by side: tune compare simulated-A100-SXM4 simulated-H100\n")


def test_all_studies_are_one_document(tune: Tune, search: Callable[..., Path]) -> None:
    result = tune("run", search(), "--json", runner=KindsRunner())
    studies = [study["study"] for study in json.loads(result.stdout)["studies"]]
    assert studies == ["simulated-A100-SXM4", "simulated-H100"]


def test_studies_that_have_begun_go_on_and_others_begin(
    tune: Tune, search: Callable[..., Path], tmp_path: Path
) -> None:
    tune("run", search("H100", study="simulated-H100"), runner=KindsRunner())
    result = tune("run", search(study="simulated"), "--resume", runner=KindsRunner())
    assert result.exit_code == 0
    assert (tmp_path / "runs" / "simulated-A100-SXM4" / "results.json").exists()


def test_a_cluster_without_kinds_is_refused(tune: Tune, search: Callable[..., Path]) -> None:
    result = tune("run", search(), runner=KindsRunner([]))
    assert result.exit_code == 2
    assert "runner.accelerator_type is all, but the cluster has no accelerators that Ray knows" in result.stderr


def test_studies_of_a_job_outlive_the_folder_that_it_was_sent_in(
    search: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray removes that folder with the job's first connection."""
    config = load_search_file(search())
    sent = tmp_path / "sent"
    sent.mkdir()
    monkeypatch.chdir(sent)

    class RemovingRunner(KindsRunner):
        def close(self) -> None:
            shutil.rmtree(sent, ignore_errors=True)

    monkeypatch.setattr(assemble, "ray_runner", lambda config: RemovingRunner())
    studies = each_kind(config)
    assert [of_kind.study for of_kind, _ in studies] == ["simulated-A100-SXM4", "simulated-H100"]
    assert Path.cwd() == Path.home()
