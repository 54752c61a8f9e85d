from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from simulated_profile import DRY_RUN, PROFILE
from simulation import ENVIRONMENT, INSPECTION, MIB, WORKLOAD, measure, policy, replay, results_of, trial

from runners.parallel.records import PipelineCut
from runners.trial import DryRunResult, ModelInspection, TrialSpec
from search_spaces.model_shape import BlockList, ModelShape
from tuner import assemble
from tuner.results import StudyResults

WriteSearch = Callable[..., Path]
Tune = Callable[..., Result]
Plan = Callable[..., Result]


@pytest.fixture
def plan(tune: Tune, write_search: WriteSearch, monkeypatch: pytest.MonkeyPatch) -> Plan:
    def run(
        *options: object,
        dry_run: DryRunResult = DRY_RUN,
        inspection: ModelInspection = INSPECTION,
        **search: Any,
    ) -> Result:
        inspector = replay(inspection=inspection, dry_run=dry_run)
        monkeypatch.setattr(assemble, "local_inspector", lambda: inspector)
        return tune("plan", write_search(**search), *options)

    return run


@pytest.fixture
def study(tmp_path: Path, tracking_database: Path) -> Callable[..., Path]:
    """An earlier study of the simulated model, by its folder."""

    def write(results: StudyResults) -> Path:
        folder = tmp_path / "runs" / "earlier"
        folder.mkdir()
        (folder / "results.json").write_text(results.to_json())
        return folder

    return write


def earlier(**changes: Any) -> StudyResults:
    return results_of(
        trial(0), trial(1, "block"), trial(2, "none", 1), trial(3, "block", 1), study="earlier", **changes
    )


def data_of(result: Result) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_everything_that_is_shown_is_called_predicted(plan: Plan, tmp_path: Path) -> None:
    result = plan()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "simulated: Model, 1,000 parameters; h, 2 x Block",
        "Nothing was run: all figures are predicted.",
    ]
    titles = [line.strip() for line in lines if line and not line.startswith(("│", "┃", "┏", "┡", "└", "├"))]
    assert titles[2:6] == [
        "predicted memory of a step without recompute",
        "predicted peak in MiB with one action on all blocks; in brackets what does not fit 20.0 MiB",
        "cheapest predicted placement within 20.0 MiB, by micro-batch",
        "predicted front",
    ]
    assert "Least recompute predicted within 20.0 MiB: none @1x2, predicted peak 18.0 MiB." in lines
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlflow.db"], "a plan is no study"


def test_progress_goes_to_standard_error(plan: Plan) -> None:
    assert plan("--json").stderr.splitlines() == ["building the model without data", "running steps on fake tensors"]


def test_predicted_peaks_are_those_that_are_measured(plan: Plan) -> None:
    """The simulated dry run sees what the simulated device does."""
    data = data_of(plan("--json", placement__actions=["none", "attention", "mlp", "block"]))
    assert len(data["uniform"]) == 8
    for row in data["uniform"]:
        tried = policy(row["action"], row["micro_batch_size"])
        measured = measure(TrialSpec(trial_number=0, policy=tried, workload=WORKLOAD)).peak_memory_bytes
        assert row["predicted_peak_memory_bytes"] == measured
        assert row["predicted_to_fit"] == (measured is not None and measured <= 20 * MIB)
    for row in (*data["cheapest"], *data["front"]):
        assert row["predicted_peak_memory_bytes"] <= 20 * MIB


def test_what_memory_is_made_of_adds_up(plan: Plan) -> None:
    largest, smallest = data_of(plan("--json"))["memory"]
    for row in (largest, smallest):
        parts = ("parameters", "gradients", "optimizer_states", "buffers_and_inputs", "activations_and_temporary")
        assert sum(row[f"{part}_bytes"] for part in parts) == row["predicted_peak_memory_bytes"]
    assert (largest["micro_batch_size"], smallest["micro_batch_size"]) == (2, 1)
    assert (largest["floor_bytes"], largest["floor_policy"]) == (12 * MIB, "block @2x1")
    assert largest["gathered_bytes"] is None


def test_the_largest_micro_batch_that_fits(plan: Plan) -> None:
    assert data_of(plan("--json"))["largest_micro_batch"] == [
        {"action": "none", "micro_batch_size": 1},
        {"action": "block", "micro_batch_size": 2},
        {"action": "any mixture", "micro_batch_size": 2},
    ]


def test_without_a_study_time_is_counted_in_flops(plan: Plan) -> None:
    data = data_of(plan("--json"))
    assert (data["time_unit"], data["times_from"]) == ("plain step FLOPs", None)
    by_size = {row["micro_batch_size"]: row for row in data["cheapest"]}
    # One of the two blocks recomputed makes room for 2 samples; it costs half of what both cost.
    assert by_size[2]["predicted_flops_ratio"] == pytest.approx(1.15)
    assert (by_size[1]["policy_summary"], by_size[1]["predicted_flops_ratio"]) == ("none @1x2", 1.0)
    assert all(row["predicted_step_time_s"] is None for row in data["front"])
    text = plan().stdout
    assert "time, not measured: counted in FLOPs" in text
    assert "micro-batch sizes have no known difference in speed" in text


def test_an_earlier_study_gives_times(plan: Plan, study: Callable[..., Path]) -> None:
    """Measured were 1 s, and 1.3 s with both blocks recomputed; of one block nothing was measured."""
    folder = study(earlier())
    data = data_of(plan("--json", "--study", folder))
    assert data["time_unit"] == "seconds"
    assert data["times_from"]["study"] == "earlier"
    assert data["times_from"]["num_trials"] == 4
    assert data["times_from"]["measured_peak_ratios"] == [1.0, 1.0, 1.0]
    best = data["best"]
    assert best["micro_batch_size"] == 2
    assert best["predicted_step_time_s"] == pytest.approx(1.15, rel=0.03)
    low, high = best["predicted_step_time_interval_s"]
    assert low < 1.15 < high
    assert best["predicted_tokens_per_second"] == pytest.approx(2 * 16 / best["predicted_step_time_s"])
    times = [row["predicted_step_time_s"] for row in data["front"]]
    peaks = [row["predicted_peak_memory_bytes"] for row in data["front"]]
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)


def test_times_are_shown_with_their_interval(plan: Plan, study: Callable[..., Path], tmp_path: Path) -> None:
    study(earlier())
    result = plan("--study", "earlier", "--output-dir", tmp_path / "runs")
    assert result.exit_code == 0
    assert "predicted step (90 %)" in result.stdout
    assert "predicted tokens/s (90 %)" in result.stdout
    (row, *_) = [line for line in result.stdout.splitlines() if line.startswith("│ none @1x2 ")]
    assert re.search(r"1\.\d\d s \(1\.\d\d to 1\.\d\d\) │ +2\d(\.\d)? \([12]\d(\.\d)? to 2\d(\.\d)?\) ", row), row
    assert "fitted to 4 measured trials of study earlier on a simulated CPU, 2 threads" in result.stdout
    assert "In that study measured peaks were 1.000 times the predicted ones" in result.stdout


def test_a_study_is_looked_for_in_the_folder_of_studies(plan: Plan, tmp_path: Path) -> None:
    result = plan("--study", "earlier", "--output-dir", tmp_path / "runs")
    assert result.exit_code == 2
    assert "--study is 'earlier', which is neither a study in" in result.stderr


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch__global_batch_size": 4}, "batch.global_batch_size 2 there and 4 here"),
        ({"model__dtype": "bfloat16"}, "model.dtype float32 there and bfloat16 here"),
    ],
)
def test_a_study_of_other_work_is_refused(
    plan: Plan, study: Callable[..., Path], changes: dict[str, Any], message: str
) -> None:
    before = {"batch": {"global_batch_size": 2}, "model": {"dtype": "float32"}}
    result = plan("--study", study(earlier(search=before)), **changes)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        f"--study earlier is not of this model and batch: {message}; name a study of the same model, or leave --study "
        "out"
    )


def test_a_study_of_another_model_is_refused(plan: Plan, study: Callable[..., Path]) -> None:
    deeper = INSPECTION.model_copy(update={"shape": ModelShape(1500, (BlockList("h", "Block", 3),))})
    result = plan("--study", study(earlier()), inspection=deeper)
    assert result.exit_code == 2
    assert "parameters 1000 there and 1500 here; blocks h 2 x Block there and h 3 x Block here" in result.stderr


def test_a_study_of_other_actions_and_sizes_says_nothing(plan: Plan, study: Callable[..., Path]) -> None:
    other = results_of(trial(0, "mlp"), trial(1, "none", 1), study="earlier")
    result = plan("--study", study(other), batch__micro_batch_sizes=[2])
    assert result.exit_code == 2
    assert "--study earlier has measured no step time of a policy that this search may try" in result.stderr


def test_nothing_that_fits_is_exit_code_3(plan: Plan) -> None:
    result = plan(memory_cap="10MiB")
    assert result.exit_code == 3
    assert "Nothing is predicted to fit 10.0 MiB: the least predicted peak is 11.0 MiB." in result.stdout
    data = data_of(plan("--json", memory_cap="10MiB"))
    assert (data["best"], data["cheapest"], data["front"]) == (None, [], [])


def test_a_model_without_a_dry_run_is_exit_code_1(plan: Plan) -> None:
    result = plan(dry_run=DryRunResult(failure="the model has no dry run: it reads a value"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "nothing can be predicted of model.py:build: the model has no dry run: it reads a value"
    )


UNEVEN = "its blocks do not run in the same order in every step"


def uneven(*, is_traced: bool) -> DryRunResult:
    """Peaks of none and block, each at both sizes; stretches that do not add up, or none at all."""
    steps = PROFILE.steps if is_traced else ()
    profile = replace(PROFILE, steps=steps, refusal=UNEVEN)
    return DryRunResult(profile=profile, peaks_bytes=tuple(size * MIB for size in (26, 18, 12, 11)))


def test_peaks_that_do_not_add_up_are_from_dry_runs_of_each_placement(plan: Plan) -> None:
    result = plan(dry_run=uneven(is_traced=True))
    assert result.exit_code == 0
    assert "running 4 placements on fake tensors, one by one" in result.stderr
    assert f"Predicted peaks are from a dry run of each placement that is listed, since {UNEVEN}" in result.stdout
    data = data_of(plan("--json", dry_run=uneven(is_traced=True)))
    assert (data["peaks_from"], data["memory"], data["max_relative_error"]) == ("dry runs", [], None)
    assert {row["policy_summary"] for row in data["front"]} == {"block @2x1", "none @1x2", "block @1x2"}


def test_without_traced_steps_only_peaks_are_predicted(plan: Plan) -> None:
    data = data_of(plan("--json", dry_run=uneven(is_traced=False)))
    assert (data["time_unit"], data["cheapest"], data["front"]) == (None, [], [])
    assert [row["predicted_to_fit"] for row in data["uniform"]] == [False, True, True, True]
    assert plan(dry_run=uneven(is_traced=False)).exit_code == 0


def test_what_does_not_add_up_cannot_be_divided(plan: Plan) -> None:
    result = plan("--shard", 2, dry_run=uneven(is_traced=True))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--shard is 2, which takes peaks added up from single blocks" in result.stderr


def test_divided_over_ranks(plan: Plan) -> None:
    result = plan("--shard", 2)
    assert "predicted memory of a step without recompute, on one of 2 ranks" in result.stdout
    assert "Counted: its share of parameters" in result.stdout
    data = data_of(plan("--json", "--shard", 2))
    for row, plain in zip(data["memory"], data["uniform"], strict=False):
        parts = [value for name, value in row.items() if name.endswith("_bytes") and name != "floor_bytes"]
        assert sum(parts) == 2 * row["predicted_peak_memory_bytes"], "the parts, and their sum"
        assert row["predicted_peak_memory_bytes"] == plain["predicted_peak_memory_bytes"]
        assert row["parameters_bytes"] == MIB
        assert row["gathered_bytes"] > MIB


def test_copies_of_ranks_are_counted_where_the_search_would_run_on_a_cpu(plan: Plan) -> None:
    def peak(*options: object, **search: Any) -> int:
        peaks: list[int] = [
            row["predicted_peak_memory_bytes"]
            for row in data_of(plan("--json", "--shard", 2, *options, **search))["memory"]
        ]
        return max(peaks)

    on_cpu, elsewhere = peak(runner__device="cpu"), peak(runner__device="cuda")
    assert on_cpu > elsewhere
    assert peak() == on_cpu, "what this machine has"
    assert peak(runner__ray_address="head.example:6379") == elsewhere
    assert peak("--device-memory", "80GiB") == elsewhere
    assert "are counted, too" in plan("--shard", 2).stdout
    assert "runner.device: cpu counts them" in plan("--shard", 2, runner__device="cuda").stdout


def test_stages_of_a_pipeline(plan: Plan) -> None:
    cut = PipelineCut(blocks="h", first_blocks=(0, 1), num_blocks=2, outside_bytes=(0, 0), hidden_bytes=(0,))
    result = plan(
        inspection=INSPECTION.model_copy(update={"pipeline_cut": cut}),
        runner__strategy="pipeline",
        runner__pipeline_stages=2,
        batch__micro_batch_sizes=[1],
    )
    assert "Predicted for 2 stages of a pipeline; each peak is that of the worst stage. FLOPs are those of all" in (
        result.stdout
    )


@pytest.mark.parametrize("search", [{"runner__device": "auto"}, {"runner__device": "cuda"}])
def test_a_share_of_a_device_that_is_not_known_is_asked_for(plan: Plan, search: dict[str, Any]) -> None:
    nowhere = INSPECTION.model_copy(update={"environment": {}, "device_memory_bytes": None})
    result = plan(memory_cap="90%", inspection=nowhere, **search)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "memory_cap is 90%, a share of the device's memory, and which device that is cannot be told here " in (
        result.stderr
    )
    assert f"(runner.device is {search['runner__device']}); say how much it has with --device-memory" in result.stderr


def test_a_share_of_a_named_device(plan: Plan) -> None:
    data = data_of(plan("--json", "--device-memory", "40MiB", memory_cap="50%"))
    assert (data["memory_cap_bytes"], data["device_memory_bytes"]) == (20 * MIB, 40 * MIB)


def test_a_share_of_this_machine_where_the_file_says_cpu(plan: Plan) -> None:
    data = data_of(plan("--json", memory_cap="50%", runner__device="cpu"))
    assert (data["memory_cap_bytes"], data["device_memory_bytes"]) == (10**9 // 2, 10**9)


def test_a_share_of_the_accelerator_that_is_here(plan: Plan) -> None:
    here = INSPECTION.model_copy(update={"environment": {**ENVIRONMENT, "device_kind": "cuda"}})
    assert data_of(plan("--json", memory_cap="50%", inspection=here))["memory_cap_bytes"] == 10**9 // 2


@pytest.mark.parametrize(
    "value, message",
    [
        ("80", "--device-memory is '80', a number without a unit"),
        ("90%", "--device-memory is 90%; it is what a share is taken of, write bytes such as 80GiB"),
        ("10MiB", "memory_cap is 20MiB, but the device has 10,485,760 bytes (10.0 MiB); lower it"),
    ],
)
def test_device_memory_that_is_none(plan: Plan, value: str, message: str) -> None:
    result = plan("--device-memory", value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_notes_tell_a_cpu_from_other_devices(plan: Plan) -> None:
    about_others = "Sizes are those of torch's CPU kernels"
    assert about_others in plan().stdout
    assert about_others not in plan(runner__device="cpu").stdout


def test_scratch_of_convolutions_is_said_to_be_left_out(plan: Plan) -> None:
    about_scratch = "The model has convolutions, and the scratch memory of an accelerator's kernels for them"
    convolutional = INSPECTION.model_copy(update={"has_convolutions": True})
    assert about_scratch in plan(inspection=convolutional).stdout
    assert about_scratch not in plan(inspection=convolutional, runner__device="cpu").stdout
    assert about_scratch not in plan().stdout


def test_json_is_one_document_and_nothing_else(plan: Plan) -> None:
    result = plan("--json")
    assert result.exit_code == 0
    data = data_of(result)
    assert (data["schema_version"], data["study"]) == (1, "simulated")
    assert data["model"] == {"model_class": "Model", "num_parameters": 1000, "block_lists": ["h, 2 x Block"]}
