from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from simulation import policy

from search_spaces.policy_file import load_policy
from tuner.export.policy import policy_yaml
from tuner.export.registry import EXPORTERS
from tuner.results import StudyResults

Tune = Callable[..., Result]


@pytest.fixture
def export(tune: Tune, runs: Path) -> Callable[..., Result]:
    def run(*options: object, study: str = "simulated", format: str = "policy") -> Result:
        return tune("export", study, "--format", format, "--output-dir", runs, *options)

    return run


def test_the_best_goes_to_standard_output(export: Callable[..., Result], study: StudyResults) -> None:
    result = export()
    best = study.best_trial()
    assert best is not None
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == policy_yaml(study, best)


@pytest.mark.parametrize(
    "options, expected",
    [(["--trial", 2], policy("none", 1)), (["--memory-cap", "12MiB"], policy("block"))],
    ids=["trial", "memory-cap"],
)
def test_another_trial_into_a_file(
    export: Callable[..., Result], tmp_path: Path, options: list[object], expected: object
) -> None:
    file = tmp_path / "train-policy.yaml"
    result = export(*options, "--output", file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert load_policy(file) == expected
    assert str(file) in result.stderr


@pytest.mark.parametrize(
    "options, line",
    [
        (["--trial", 0], "--trial is 0, which is not feasible (its peak is 30.0% over the cap)"),
        (["--trial", 9], "--trial is 9, which study simulated does not have; feasible trials are 1, 2, 3"),
        (["--trial", 1, "--memory-cap", "1GiB"], "--trial is 1 and --memory-cap is 1GiB; name one of the two"),
        (["--memory-cap", "40"], "--memory-cap is '40', a number without a unit; write 40GiB or 40GB"),
        (["--memory-cap", "1MiB"], "--memory-cap is 1,048,576 bytes (1.0 MiB), but in study simulated the least"),
        (["--memory-cap", "90%"], "--memory-cap is 90%; a share of a device means nothing here, write bytes"),
        (["--memory-cap", "much"], "--memory-cap is 'much'; allowed: a size with its unit"),
        (["--memory-cap", ""], "--memory-cap is ''; allowed: a size with its unit"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_writes_nothing(
    export: Callable[..., Result], tmp_path: Path, options: list[object], line: str
) -> None:
    result = export(*options, "--output", tmp_path / "out.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    (said,) = result.stderr.splitlines()
    assert said.startswith(line)
    assert not (tmp_path / "out.yaml").exists()


def test_an_unknown_format_is_answered_with_the_known_ones(export: Callable[..., Result]) -> None:
    result = export(format="polcy")
    assert (result.exit_code, result.stderr) == (
        2,
        f"--format is 'polcy'; known are {', '.join(EXPORTERS)}; did you mean policy?\n",
    )


def test_an_unknown_study(export: Callable[..., Result]) -> None:
    result = export(study="simulatd")
    assert result.exit_code == 2
    assert "did you mean simulated?" in result.stderr


@pytest.mark.parametrize(
    "output, reason",
    [
        ("missing/out.yaml", "No such file or directory"),
        ("runs", "Is a directory"),
        ("file/out.yaml", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written(export: Callable[..., Result], tmp_path: Path, output: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    result = export("--output", tmp_path / output)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"--output is {tmp_path / output}, which cannot be written: {reason}; name another file\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_of_before_is_replaced(export: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("old")
    assert export("--output", file).exit_code == 0
    assert load_policy(file) == policy("mlp")


class TestTrialsOfAPipeline:
    @pytest.fixture(autouse=True)
    def stages(self, runs: Path, study: StudyResults) -> None:
        """The study as if its trials had run in two stages."""
        path = runs / "simulated" / "results.json"
        data = json.loads(path.read_text())
        for trial in [data["baseline"], *data["trials"]]:
            trial["stage_micro_batches"] = [2, 1]
        path.write_text(json.dumps(data))

    @pytest.mark.parametrize("format", ["megatron", "mindspeed", "primus"])
    def test_stacks_that_count_blocks_in_each_stage_are_refused(
        self, export: Callable[..., Result], format: str
    ) -> None:
        result = export(format=format)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "was measured in a pipeline of 2 stages" in result.stderr
        assert f"--format {format} cannot say its policy" in result.stderr

    def test_the_policy_of_the_whole_model_is_exported(self, export: Callable[..., Result]) -> None:
        assert export().exit_code == 0
