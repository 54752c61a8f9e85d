from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from simulation import policy, run
from traced_steps import TracingRunner

from runners.base import RunnerError
from runners.step_timeline.records import StepTimeline, StepTimelineSpec

WriteSearch = Callable[..., Path]


def artifacts(tmp_path: Path) -> dict[str, str]:
    """Files below `timeline` in the study's own run -> their texts."""
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (study,) = client.search_runs(experiments, "tags.study_id != '' and tags.mlflow.source.name = 'tune run'")
    names = [entry.path for entry in client.list_artifacts(study.info.run_id, "timeline")]
    return {name: Path(client.download_artifacts(study.info.run_id, name)).read_text() for name in names}


def test_a_study_ends_with_the_timelines_of_baseline_and_winner(write_search: WriteSearch, tmp_path: Path) -> None:
    runner = TracingRunner()
    outcome = run(write_search(), runner=runner)
    best = outcome.results.best_trial()
    assert best is not None
    assert [spec.policy.key for spec in runner.asked] == [best.policy_key]
    assert [each.key for each in runner.asked[0].also] == [policy("none").key]
    folder = tmp_path / "runs" / "simulated"
    for name, summary in (("baseline", "Plain: none @2x1"), ("winner", f"With the policy: {best.policy_summary}")):
        page = (folder / f"timeline-{name}.html").read_text()
        assert re.findall(r"<h2 .*?>(.*?)</h2>", page) == [summary]
    kept = artifacts(tmp_path)
    assert set(kept) == {f"timeline/{name}.{kind}" for name in ("baseline", "winner") for kind in ("html", "json")}
    assert kept["timeline/winner.html"] == (folder / "timeline-winner.html").read_text()
    assert json.loads(kept["timeline/winner.json"])["steps"][0]["policy_key"] == best.policy_key


def test_a_baseline_that_wins_is_traced_once(write_search: WriteSearch, tmp_path: Path) -> None:
    runner = TracingRunner()
    run(write_search(memory_cap="100MiB"), runner=runner)
    assert [(spec.policy.summary(), spec.also) for spec in runner.asked] == [("none @2x1", ())]
    assert len(list((tmp_path / "runs" / "simulated").glob("timeline-*.html"))) == 2


def test_a_baseline_that_does_not_fit_the_device_is_left_out(
    write_search: WriteSearch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run(write_search(), runner=TracingRunner(refused=(policy("none").key,)))
    assert "no timeline of the baseline: it does not fit the device's memory" in caplog.messages
    assert [file.name for file in (tmp_path / "runs" / "simulated").glob("timeline-*")] == ["timeline-winner.html"]


class Unreachable(TracingRunner):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def step_timeline(self, spec: StepTimelineSpec) -> StepTimeline:
        raise self._error


@pytest.mark.parametrize(
    ("runner", "reason"),
    [
        (TracingRunner(deadly=(policy("none").key,)), "the worker died (signal 9)"),
        (Unreachable(RunnerError("no node gave CPU: 2")), "no node gave CPU: 2"),
        (Unreachable(KeyboardInterrupt()), "interrupted"),
    ],
    ids=["worker dies", "no node", "interrupted"],
)
def test_trouble_costs_the_timelines_and_nothing_else(
    write_search: WriteSearch, tmp_path: Path, caplog: pytest.LogCaptureFixture, runner: TracingRunner, reason: str
) -> None:
    caplog.set_level("INFO")
    outcome = run(write_search(), runner=runner)
    assert f"no timelines: {reason}" in caplog.messages
    assert (outcome.results.status, outcome.results.best is not None) == ("finished", True)
    assert artifacts(tmp_path) == {}


def test_a_resumed_study_does_not_keep_the_page_of_an_earlier_winner(write_search: WriteSearch, tmp_path: Path) -> None:
    file = write_search(search__num_trials=2)
    run(file, runner=TracingRunner())
    run(write_search(), resume=True, runner=Unreachable(RunnerError("gone")))
    assert list((tmp_path / "runs" / "simulated").glob("timeline-*")) == []
