from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulation import ENVIRONMENT, INSPECTION, policy, write_search

from runners.ray_runner import RayRunner
from runners.trial import ModelInspection
from search_spaces.policy import BatchShape, RecomputePolicy
from tuner import assemble
from tuner.assemble import GoalError
from tuner.config import SearchConfig
from tuner.search_file.load import load_search_file
from tuner.stopping import Progress, first_reason

GIB = 2**30


def config(folder: Path, **changes: Any) -> SearchConfig:
    return load_search_file(write_search(folder, **changes))


def on_device(num_bytes: int, **environment: str) -> ModelInspection:
    return INSPECTION.model_copy(
        update={"device_memory_bytes": num_bytes, "environment": {**ENVIRONMENT, **environment}}
    )


def test_a_workload_is_what_the_file_says(tmp_path: Path) -> None:
    spec = assemble.workload_spec(
        config(
            tmp_path,
            model__args={"depth": 3},
            model__dtype="bfloat16",
            model__autocast="float16",
            optimizer={"name": "sgd", "args": {"lr": 0.1}},
            runner__device="cpu",
            search__seed=7,
        )
    )
    assert spec.model_dump() == {
        "model_factory": "model.py:build",
        "model_args": {"depth": 3},
        "dtype": "bfloat16",
        "autocast": "float16",
        "batch_factory": None,
        "sequence_length": 16,
        "shorter_sequence_lengths": (),
        "optimizer_name": "sgd",
        "optimizer_args": {"lr": 0.1},
        "base_dir": str(tmp_path),
        "device": "cpu",
        "seed": 7,
        "compile": None,
        "compile_memory_budget": None,
        "strategy": "none",
        "sharded_lists": (),
        "pipeline_cut": None,
    }


@pytest.mark.parametrize(
    ("written", "longest", "shorter"),
    [([64, 256, 128], 256, (64, 128)), ([64], 64, ()), (64, 64, ()), (None, None, ())],
    ids=["list", "list-of-one", "number", "none"],
)
def test_the_longest_sequences_stand_apart(
    tmp_path: Path, written: object, longest: int | None, shorter: tuple[int, ...]
) -> None:
    spec = assemble.workload_spec(config(tmp_path, batch__sequence_length=written))
    assert (spec.sequence_length, spec.shorter_sequence_lengths) == (longest, shorter)
    assert spec.sequence_lengths == (*shorter, *(() if longest is None else (longest,)))


def test_relative_files_start_from_the_search_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    write_search(tmp_path / "below")
    monkeypatch.chdir(tmp_path)
    assert assemble.workload_spec(load_search_file("below/search.yaml")).base_dir == str(tmp_path / "below")


@pytest.mark.parametrize("sizes, expected", [("auto", 2), ([6, 3, 1], 3), ([1], 1)])
def test_the_model_is_looked_at_with_the_smallest_batch_that_has_statistics(
    tmp_path: Path, sizes: object, expected: int
) -> None:
    made = config(tmp_path, batch__global_batch_size=6, batch__micro_batch_sizes=sizes, runner__trial_timeout="90s")
    spec = assemble.inspection_spec(made)
    assert (spec.micro_batch_size, spec.timeout_s, spec.blocks, spec.units) == (expected, 90.0, None, None)


def test_named_blocks_and_units_are_handed_on(tmp_path: Path) -> None:
    named = config(tmp_path, placement={"blocks": ["h"], "units": {"wide": "mlp"}})
    spec = assemble.inspection_spec(named)
    assert (spec.blocks, spec.units) == (("h",), {"wide": "mlp"})


@pytest.mark.parametrize("sizes, expected", [("auto", (1, 2, 3, 6)), ([6, 2], (2, 6))])
def test_micro_batches_are_every_divisor_or_those_named(tmp_path: Path, sizes: object, expected: object) -> None:
    made = config(tmp_path, batch__global_batch_size=6, batch__micro_batch_sizes=sizes)
    assert assemble.micro_batch_sizes(made) == expected


def test_choices_are_what_the_file_allows(tmp_path: Path) -> None:
    placement = {"actions": ["none", "mlp", "segment"], "segment_sizes": [2], "preserve_rng_state": "search"}
    choices = assemble.search_choices(config(tmp_path, placement=placement), INSPECTION)
    assert choices.actions == ("none", "mlp", "segment")
    assert choices.segment_sizes == (2,)
    assert choices.rng_choices == (True, False)
    assert choices.micro_batch_sizes == (1, 2)


def test_trials_run_beside_plain_steps_of_the_smallest_micro_batch(tmp_path: Path) -> None:
    choices = assemble.search_choices(config(tmp_path), INSPECTION)
    assert assemble.reference_policy(choices, INSPECTION) == RecomputePolicy(BatchShape(1, 2, 1, 2))


def test_where_the_device_enforces_the_cap_nothing_runs_beside_a_trial(tmp_path: Path) -> None:
    choices = assemble.search_choices(config(tmp_path), INSPECTION)
    assert assemble.reference_policy(choices, on_device(GIB, device_kind="cuda")) is None


@pytest.mark.parametrize("cap, expected", [("600MiB", 600 * 2**20), ("50%", GIB), ("2GiB", 2 * GIB), ("100%", 2 * GIB)])
def test_a_cap_in_bytes_or_as_a_share(tmp_path: Path, cap: str, expected: int) -> None:
    assert assemble.memory_cap_bytes(config(tmp_path, memory_cap=cap), on_device(2 * GIB)) == expected


def test_a_cap_that_is_more_than_the_device_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        GoalError,
        match=r"memory_cap is 3GiB, 3,221,225,472 bytes \(3\.0 GiB\), but the device \(a simulated CPU, 2 threads\) "
        r"has 2,147,483,648 bytes \(2\.0 GiB\); lower it, for example to 90%",
    ):
        assemble.memory_cap_bytes(config(tmp_path, memory_cap="3GiB"), on_device(2 * GIB))


@pytest.mark.parametrize("verify", [True, False])
def test_the_goal_is_the_files(tmp_path: Path, verify: bool) -> None:
    objective = assemble.objective_for(config(tmp_path, measurement__verify=verify), 7, policy())
    assert (objective.memory_cap_bytes, objective.proof_required, objective.has_reference) == (7, verify, True)
    assert not assemble.objective_for(config(tmp_path), 7, None).has_reference


def test_a_search_ends_by_the_files_limits(tmp_path: Path) -> None:
    rules = assemble.stop_rules(config(tmp_path, search={"num_trials": 5, "time_limit": "2m"}))
    assert first_reason(rules, Progress(num_trials=4, elapsed_s=119.0)) is None
    reasons = [
        first_reason(rules, Progress(num_trials=5)),
        first_reason(rules, Progress(elapsed_s=120.0)),
        first_reason(rules, Progress(space_exhausted=True)),
        first_reason(rules, Progress(baseline_failure="no")),
        first_reason(rules, Progress(num_failed_in_a_row=10)),
    ]
    assert [reason.code if reason else None for reason in reasons] == [
        "num_trials",
        "time_limit",
        "space_exhausted",
        "baseline_failed",
        "too_many_failures",
    ]


def test_a_trial_is_handed_all_it_needs(tmp_path: Path) -> None:
    made = config(tmp_path, measurement={"min_steps": 3, "max_steps": 9}, runner__trial_timeout="2m")
    spec = assemble.spec_maker(made, INSPECTION, cap_bytes=7, reference=policy())(4, policy("block"))
    assert (spec.trial_number, spec.policy, spec.reference) == (4, policy("block"), policy())
    assert (spec.memory_cap_bytes, spec.timeout_s) == (7, 120.0)
    assert (spec.measurement.min_steps, spec.measurement.max_steps, spec.measurement.verify) == (3, 9, True)
    assert spec.workload == assemble.workload_spec(made)


def test_a_runner_is_made_without_starting_anything(tmp_path: Path) -> None:
    runner = assemble.ray_runner(config(tmp_path, runner={"resources_per_trial": {"CPU": 1}, "isolation": "process"}))
    assert isinstance(runner, RayRunner)
    runner.close()


def test_studies_go_below_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assemble.output_dir(config(tmp_path, output_dir="runs")) == Path("runs")
    monkeypatch.setenv("HOME", "/home/me")
    assert assemble.output_dir(config(tmp_path, output_dir="~/runs")) == Path("/home/me/runs")


def test_tracking_is_one_file_beside_the_studies_and_one_experiment_per_model(tmp_path: Path) -> None:
    settings = assemble.tracking(config(tmp_path))
    assert settings.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert settings.experiment == "model.py:build"
    named = config(tmp_path, tracking={"uri": "http://127.0.0.1:5000/", "experiment": "mine"})
    assert (assemble.tracking(named).uri, assemble.tracking(named).experiment) == ("http://127.0.0.1:5000", "mine")


def test_a_folder_that_no_address_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GoalError, match=r"output_dir leads to .*what\?.*; the address of a database cannot hold"):
        assemble.tracking(config(tmp_path, output_dir=str(tmp_path / "what?")))
