from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from simulation import policy
from traced_steps import TracingRunner

from search_spaces.policy import policy_to_dict
from search_spaces.yaml_text import dump_yaml

WriteSearch = Callable[..., Path]
Tune = Callable[..., Result]
PLAIN, BLOCK = policy("none"), policy("block")


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(dump_yaml(policy_to_dict(BLOCK)))
    return file


def asked(runner: TracingRunner) -> list[list[str]]:
    return [[each.summary() for each in (spec.policy, *spec.also)] for spec in runner.asked]


def test_a_plain_step_is_shown_and_written_to_the_study_s_folder(
    tune: Tune, write_search: WriteSearch, tmp_path: Path
) -> None:
    runner = TracingRunner()
    result = tune("timeline", write_search(), runner=runner)
    assert (result.exit_code, result.stderr) == (0, "tracing one step of none @2x1\n")
    assert asked(runner) == [["none @2x1"]]
    assert runner.asked[0].num_blocks == 3
    folder = tmp_path / "runs" / "simulated"
    assert result.stdout.splitlines()[-1] == f"Written: {folder}/timeline.html and {folder}/timeline.json"
    assert "h.1" in result.stdout
    assert "Most is alive 60.0 ms into the step: 20.0 MiB, in backward." in result.stdout
    assert "<title>simulated: timeline of one step</title>" in (folder / "timeline.html").read_text()
    assert json.loads((folder / "timeline.json").read_text())["steps"][0]["policy_key"] == PLAIN.key


def test_a_study_can_still_be_run_under_that_name(tune: Tune, write_search: WriteSearch) -> None:
    file = write_search()
    assert tune("timeline", file, runner=TracingRunner()).exit_code == 0
    assert tune("run", file).exit_code == 0


def test_a_policy_is_traced_beside_the_plain_step(
    tune: Tune, write_search: WriteSearch, policy_file: Path, tmp_path: Path
) -> None:
    runner = TracingRunner()
    result = tune("timeline", write_search(), "--policy", policy_file, "--output", tmp_path / "out", runner=runner)
    assert result.exit_code == 0
    assert asked(runner) == [["block @2x1", "none @2x1"]]
    page = (tmp_path / "out" / f"timeline-{BLOCK.key}.html").read_text()
    assert page.index("With the policy: block @2x1") < page.index("Plain: none @2x1")


@pytest.mark.parametrize("named", ["simulated", "runs/simulated"])
def test_the_policy_of_a_study_is_found_by_name_and_by_folder(
    tune: Tune, write_search: WriteSearch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_search()
    assert tune("run", file).exit_code == 0
    best = yaml.safe_load((tmp_path / "runs" / "simulated" / "policy.yaml").read_text())
    runner = TracingRunner()
    assert tune("timeline", file, "--policy", named, runner=runner).exit_code == 0
    assert policy_to_dict(runner.asked[0].policy)["placement"] == best["placement"]


def test_a_plain_step_that_does_not_fit_is_said(tune: Tune, write_search: WriteSearch, policy_file: Path) -> None:
    result = tune("timeline", write_search(), "--policy", policy_file, runner=TracingRunner(refused=(PLAIN.key,)))
    assert result.exit_code == 0
    assert "There is no trace of none @2x1: it does not fit the device's memory." in result.stdout.splitlines()


def test_a_plain_step_that_ends_the_worker_costs_the_policy_nothing(
    tune: Tune, write_search: WriteSearch, policy_file: Path
) -> None:
    runner = TracingRunner(deadly=(PLAIN.key,))
    result = tune("timeline", write_search(), "--policy", policy_file, runner=runner)
    assert result.exit_code == 0
    assert asked(runner) == [["block @2x1", "none @2x1"], ["block @2x1"]]
    assert "the worker died (signal 9); tracing the policy's step alone" in result.stderr


def test_the_largest_micro_batch_that_runs_is_taken(tune: Tune, write_search: WriteSearch) -> None:
    runner = TracingRunner(refused=(PLAIN.key,))
    assert tune("timeline", write_search(), runner=runner).exit_code == 0
    assert asked(runner) == [["none @2x1"], ["none @1x2"]]


def test_a_named_micro_batch_is_taken(tune: Tune, write_search: WriteSearch, policy_file: Path) -> None:
    runner = TracingRunner()
    tune("timeline", write_search(), "--micro-batch-size", 1, "--policy", policy_file, runner=runner)
    tune("timeline", write_search(), "--micro-batch-size", 1, runner=runner)
    assert asked(runner) == [["block @1x2", "none @1x2"], ["none @1x2"]]


@pytest.mark.parametrize(("written", "num_blocks"), [("1", 1), ("0", None), ("all", None)])
def test_blocks_are_a_number_or_all(
    tune: Tune, write_search: WriteSearch, written: str, num_blocks: int | None
) -> None:
    runner = TracingRunner()
    assert tune("timeline", write_search(), "--blocks", written, runner=runner).exit_code == 0
    assert runner.asked[0].num_blocks == num_blocks


def test_json_is_one_document_and_nothing_else(tune: Tune, write_search: WriteSearch, policy_file: Path) -> None:
    result = tune("timeline", write_search(), "--policy", policy_file, "--json", runner=TracingRunner())
    assert [step["policy_key"] for step in json.loads(result.stdout)["steps"]] == [BLOCK.key, PLAIN.key]


@pytest.mark.parametrize("runner", [TracingRunner(deadly=(PLAIN.key,)), None], ids=["dies", "none recorded"])
def test_a_step_that_cannot_be_traced_is_a_failure(
    tune: Tune, write_search: WriteSearch, tmp_path: Path, runner: TracingRunner | None
) -> None:
    result = tune("timeline", write_search(), runner=runner)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("simulated: the step could not be traced: ")
    assert not (tmp_path / "runs" / "simulated").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--blocks", "-1"], "--blocks is '-1'; write a number of blocks, or 0 or all for all of them"),
        (["--blocks", "some"], "--blocks is 'some'; write a number of blocks"),
        (["--blocks", "9" * 5000], f"--blocks is '{'9' * 57}...'; write a number of blocks"),
        (["--policy", "x" * 5000], f"--policy is '{'x' * 57}...', which is no file, no study's folder"),
        (["--policy", "nowhere"], "--policy is 'nowhere', which is no file, no study's folder with a policy.yaml"),
        (
            ["--micro-batch-size", "3"],
            "--micro-batch-size: micro_batch_size 3 x data_parallel_degree 1 does not divide",
        ),
    ],
)
def test_wrong_options_are_bad_input(tune: Tune, write_search: WriteSearch, options: list[str], line: str) -> None:
    result = tune("timeline", write_search(), *options, runner=TracingRunner())
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(line)


def test_a_policy_of_another_model_is_bad_input(tune: Tune, write_search: WriteSearch, policy_file: Path) -> None:
    data: dict[str, Any] = yaml.safe_load(policy_file.read_text())
    data["placement"][0]["num_blocks"] = 5
    policy_file.write_text(yaml.safe_dump(data))
    result = tune("timeline", write_search(), "--policy", policy_file, runner=TracingRunner())
    assert result.exit_code == 2
    assert "placement is for 5 blocks in h; the model has h (2)" in result.stderr


EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_step_on_a_real_cluster(tmp_path: Path) -> None:
    """In a process of its own, as a user has it."""
    import subprocess
    import sys

    search = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
    search |= {"study": "small", "output_dir": str(tmp_path / "runs")}
    search["model"]["args"] |= {"n_layer": 2, "n_embd": 16, "n_head": 2}
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(search))
    command = [sys.executable, "-m", "tuner", "timeline", str(tmp_path / "search.yaml"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    (step,) = json.loads(done.stdout)["steps"]
    kept = sum(group["kept_bytes"] for group in step["groups"])
    assert step["start_bytes"] + kept + step["held_bytes"] == step["backward_start_bytes"]
    assert max(step["curve"]["allocated_bytes"]) == step["peak_memory_bytes"]
    assert {group["block"] for group in step["groups"]} == {"blocks.0", "blocks.1", None}
