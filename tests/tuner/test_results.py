from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import MIB, failure, policy, results_of, trial

from runners.trial import Prediction, TrialResult, TrialStatus, Verdict, Verification
from search_spaces.policy_reader import policy_from_dict
from tuner.objective import Objective
from tuner.results import StudyResults
from tuner.results_file import ResultsError, read_results
from tuner.speed_ratio import Playoff

# The names that people script against.
STUDY_FIELDS = {
    "schema_version",
    "study",
    "status",
    "stop_reason",
    "search",
    "environment",
    "model",
    "baseline",
    "trials",
    "front",
    "best",
}
MODEL_FIELDS = {"num_parameters", "block_lists"}
BLOCK_LIST_FIELDS = {"path", "kind", "num_blocks", "units", "aliases"}
TRIAL_FIELDS = {
    *("number", "status", "reason", "feasible", "on_front", "is_best", "policy", "policy_key", "micro_batch_size"),
    *("gradient_accumulation_steps", "data_parallel_degree", "global_batch_size", "samples_per_second"),
    *("tokens_per_second", "step_time_s", "step_time_spread_s", "num_steps", "relative_speed", "forward_time_s"),
    *("backward_time_s", "recompute_time_s", "optimizer_time_s", "recomputed_flops_ratio", "peak_memory_bytes"),
    *("peak_rank", "communication"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "memory_bytes", "predicted_peak_memory_bytes"),
    *("predicted_step_time_s", "verification", "node", "device", "started_at", "wall_time_s"),
}
MEMORY_FIELDS = {"parameters", "gradients", "optimizer_states", "buffers", "activations", "temporary"}
VERIFICATION_FIELDS = {
    *("verdict", "reason", "worst_tensor", "max_relative_error", "tolerance", "num_steps", "reference"),
}
#: Names of a trial that are there whatever became of it.
ALWAYS_KNOWN = {
    *("number", "status", "feasible", "infeasible_reason", "on_front", "is_best", "is_baseline", "policy"),
    *("policy_key", "policy_summary", "micro_batch_size", "gradient_accumulation_steps", "data_parallel_degree"),
    "global_batch_size",
}


def as_json(results: StudyResults) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    data: dict[str, Any] = json.loads(results.to_json(), parse_constant=refuse)
    return data


def test_every_name_that_people_script_against_is_there() -> None:
    data = as_json(results_of(trial(0), trial(1, "block")))
    assert data.keys() >= STUDY_FIELDS
    assert data["model"].keys() >= MODEL_FIELDS
    assert data["model"]["block_lists"][0].keys() >= BLOCK_LIST_FIELDS
    for one in (*data["trials"], data["baseline"]):
        assert one.keys() >= TRIAL_FIELDS
        assert one["memory_bytes"].keys() == MEMORY_FIELDS
        assert one["verification"].keys() >= VERIFICATION_FIELDS


def test_what_was_measured_is_said_as_it_was_measured() -> None:
    result = trial(1, "block", 1)
    (said,) = as_json(results_of(result))["trials"]
    measured = result.model_dump(mode="json", exclude={"trial_number", "policy", "detail", "prediction"})
    assert {name: said[name] for name in measured} == measured
    assert (said["number"], said["policy_key"]) == (1, policy("block", 1).key)
    assert policy_from_dict(said["policy"]) == policy("block", 1)
    assert (said["micro_batch_size"], said["gradient_accumulation_steps"], said["global_batch_size"]) == (1, 2, 2)


@pytest.mark.parametrize("status", [status for status in TrialStatus if status is not TrialStatus.COMPLETED])
def test_what_a_trial_did_not_measure_is_null(status: TrialStatus) -> None:
    (said,) = as_json(results_of(failure(3, status, "it was not to be")))["trials"]
    known = {name for name, value in said.items() if value is not None}
    assert known == ALWAYS_KNOWN | {"reason"}
    assert (said["status"], said["reason"], said["feasible"]) == (status.value, "it was not to be", False)


def test_figures_that_are_no_numbers_are_null() -> None:
    odd = trial(0, relative_speed=math.nan, step_time_spread_s=math.inf, recompute_time_s=-math.inf)
    (said,) = as_json(results_of(odd))["trials"]
    assert (said["relative_speed"], said["step_time_spread_s"], said["recompute_time_s"]) == (None, None, None)


def test_a_study_without_a_finished_trial_says_so() -> None:
    data = as_json(results_of(status="running", stop_reason=None))
    assert (data["baseline"], data["trials"], data["front"], data["best"]) == (None, [], [], None)
    assert (data["status"], data["stop_reason"]) == ("running", None)


def test_trials_stand_in_order_of_number() -> None:
    results = results_of(trial(2, "block"), trial(0), trial(1, "none", 1))
    assert [t.number for t in results.trials] == [0, 1, 2]


def test_a_baseline_that_was_measured_again_is_the_last_one() -> None:
    results = results_of(failure(0, TrialStatus.CANCELLED, "interrupted"), trial(1))
    assert results.baseline == results.trial(1)


def test_the_key_of_a_policy_is_the_same_in_every_study() -> None:
    assert results_of(trial(7, "block")).trials[0].policy_key == results_of(trial(0, "block")).trials[0].policy_key
    keys = [results_of(trial(0, action, size)).trials[0].policy_key for action in ("none", "block") for size in (1, 2)]
    assert len(set(keys)) == 4


def test_front_and_best_are_the_marked_trials() -> None:
    results = results_of(trial(0), trial(1, "block"), trial(2, "none", 1), trial(3, "block", 1), trial(4, "mlp"))
    assert results.front == [4, 1, 3]
    assert [t.number for t in results.trials if t.on_front] == [1, 3, 4]
    assert [t.number for t in results.trials if t.is_best] == [results.best] == [4]
    assert [t.number for t in results.front_trials()] == results.front


VERIFICATIONS = st.sampled_from([None, *(Verification(verdict=verdict) for verdict in Verdict)])
SPEEDS = st.sampled_from([None, math.nan, 0.0, 0.5, 1.0, 2.0])


@st.composite
def odd_trials(draw: st.DrawFn, number: int) -> TrialResult:
    return trial(
        number,
        draw(st.sampled_from(["none", "mlp", "block"])),
        draw(st.sampled_from([1, 2])),
        status=draw(st.sampled_from(TrialStatus)),
        verification=draw(VERIFICATIONS),
        peak_memory_bytes=draw(st.sampled_from([None, MIB, 20 * MIB, 20 * MIB + 1])),
        relative_speed=draw(SPEEDS),
        samples_per_second=draw(SPEEDS),
    )


@given(st.integers(0, 6).flatmap(lambda count: st.tuples(*(odd_trials(number) for number in range(count)))))
@settings(max_examples=150, deadline=None)
def test_front_and_best_are_measured_within_the_cap_and_proven(trials: tuple[TrialResult, ...]) -> None:
    results = results_of(*trials)
    for number in {*results.front, *([] if results.best is None else [results.best])}:
        one = results.trial(number)
        assert one is not None
        assert one.feasible
        assert one.status is TrialStatus.COMPLETED
        assert one.peak_memory_bytes is not None
        assert one.peak_memory_bytes <= 20 * MIB
        assert one.verification is not None
        assert one.verification.verdict is Verdict.MATCH
    assert results.best in results.front if results.front else results.best is None
    as_json(results)


def test_a_mismatch_is_infeasible_where_no_proof_is_asked_for() -> None:
    objective = Objective(memory_cap_bytes=20 * MIB, proof_required=False)
    wrong = trial(1, "block", verification=Verification(verdict=Verdict.MISMATCH))
    results = results_of(trial(0, "none", 1, verification=None), wrong, objective=objective)
    assert [t.feasible for t in results.trials] == [True, False]


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    playoff = Playoff(trials=(1, 2), step_times_s=((1.0, 1.1), (1.2, 1.3)))
    results = results_of(trial(0), trial(1, "block"), trial(2, "none", 1), playoff=playoff)
    file = tmp_path / "results.json"
    file.write_text(results.to_json())
    assert read_results(file) == results


def broken(**changes: Any) -> str:
    data = json.loads(results_of(trial(0), trial(1, "block")).to_json())
    return json.dumps({**data, **changes})


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("\x00\xff", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("{}", "schema_version: Field required"),
        (broken(schema_version=2), "schema_version: Input should be 1"),
        (broken(status="done"), "status: Input should be 'running', 'finished', 'interrupted' or 'failed'"),
        (broken(trials=[{"number": 0}]), r"trials\.0\.status: Field required"),
        (broken(best=0), "front and best name trial 0, which is not a feasible trial of this file"),
        (broken(front=[7]), "front and best name trial 7"),
        (json.dumps({"episodes": [1, 2]}), "schema_version: Field required"),
    ],
    ids=lambda text: repr(text)[:20],
)
def test_a_file_that_is_none_of_ours_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ResultsError, match=rf"results\.json is not a results file of this release \(.*{reason}") as no:
        read_results(file)
    assert "\n" not in str(no.value)


def test_a_policy_that_was_edited_into_none_is_one_line(tmp_path: Path) -> None:
    data = json.loads(results_of(trial(0)).to_json())
    data["trials"][0]["policy"]["batch"]["micro_batch_size"] = 3
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    with pytest.raises(
        ResultsError,
        match=r"results\.json is not a results file of this release \(trials\.0\.policy: batch\.global_batch",
    ):
        read_results(file)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"results\.json does not exist; a study writes it"):
        read_results(tmp_path / "results.json")
    with pytest.raises(ResultsError, match=r"is not a file \(Is a directory\)"):
        read_results(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ResultsError, match=r"loop is not a file \(Too many levels of symbolic links\)"):
        read_results(tmp_path / "loop")


@pytest.mark.parametrize(
    "path, value, reason",
    [
        ("model.block_lists", [], r"trials\.0\.policy: it places 2 blocks of h, which are not in model\.block_lists"),
        ("model.block_lists.0.num_blocks", 0, r"model\.block_lists\.0\.num_blocks: .* greater than or equal to 1"),
        ("model.block_lists.0.num_blocks", 3, r"trials\.0\.policy: it places 2 blocks of h"),
        ("model.block_lists.0.path", "x", r"trials\.0\.policy: it places 2 blocks of h"),
        ("model.block_lists.0.units", {"mlp": "ff"}, r"trials\.0\.policy: its units of h are not those"),
        ("trials.1.policy.placement", [], r"trials\.1\.policy: it does not place h of model\.block_lists"),
        ("trials.1.policy_key", "0" * 12, r"trials\.1\.policy_key: it is '000000000000', but that of the policy is"),
        ("trials.1.number", 0, r"trials\.1\.number: trial 0 is there twice"),
        ("trials.0.number", -1, r"trials\.0\.number: .* greater than or equal to 0"),
        ("trials.0.global_batch_size", 0, r"trials\.0\.global_batch_size: .* greater than 0"),
        ("trials.0.micro_batch_size", 1, r"trials\.0\.micro_batch_size: it is 1, but 2 in the policy beside it"),
        ("trials.0.peak_memory_bytes", 10**400, r"trials\.0\.peak_memory_bytes: "),
        ("trials.0.peak_memory_bytes", 0, r"trials\.0\.peak_memory_bytes: .* greater than 0"),
        ("trials.0.samples_per_second", -1.0, r"trials\.0\.samples_per_second: .* greater than 0"),
        ("trials.0.relative_speed", 0, r"trials\.0\.relative_speed: .* greater than 0"),
        ("trials.0.relative_speed", math.inf, r"trials\.0\.relative_speed: .* finite number"),
        ("trials.0.step_time_s", 0, r"trials\.0\.step_time_s: .* greater than 0"),
        ("trials.0.step_time_spread_s", -1e-3, r"trials\.0\.step_time_spread_s: .* greater than or equal to 0"),
        ("trials.0.memory_bytes.buffers", 10**400, r"trials\.0\.memory_bytes"),
        ("memory_cap_bytes", 0, r"memory_cap_bytes: .* greater than 0"),
        ("search.batch", 3, r"search: batch: Input should be a mapping, read 3"),
        ("search.batch.global_batch_size", "8", r"search: batch\.global_batch_size: .* valid integer, read '8'"),
        ("search.batch.sequence_length", [], r"search: batch\.sequence_length"),
        ("search.model.factory", ["os:system"], r"search: model\.factory: .* valid string, read \['os:system'\]"),
        ("search.search.num_trials", {"a": 1}, r"search: search\.num_trials: .* valid integer, read \{'a': 1\}"),
        ("search.memory_cap", 3, r"search: memory_cap: Input should be a valid string, read 3"),
        ("model.block_lists.0.num_blocks", 10**9, r"model\.block_lists\.0\.num_blocks: .*, read 1000000000\)"),
        ("baseline.step_time_s", 77.0, r"baseline: it is not what trials say of trial 0"),
        ("playoff.step_times_s.0", [0.0, 1.0], "playoff: step_times_s has a time that is no positive number"),
        ("playoff.step_times_s.0", [1.0], "playoff: step_times_s has rows of different lengths"),
        ("playoff.trials", [1], "playoff: step_times_s has 2 rows for 1 trials"),
        (f"trials.0.verification.{'x' * 6000}", 1, r"trials\.0\.verification\.x{57}\.\.\.: "),
    ],
)
def test_a_figure_that_no_study_writes_is_refused_with_its_field(
    tmp_path: Path, path: str, value: object, reason: str
) -> None:
    playoff = Playoff(trials=(0, 1), step_times_s=((1.0, 1.1), (1.2, 1.3)))
    data = json.loads(results_of(trial(0), trial(1, "block"), playoff=playoff).to_json())
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place = data
    for parent in parents:
        place = place[parent]
    place[last] = value
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ResultsError, match=rf"results\.json is not a results file of this release \({reason}") as no:
        read_results(file)
    assert "\n" not in str(no.value)
    assert len(str(no.value)) < 1000


def test_entries_of_later_releases_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(broken(insight={"why": "because"}))
    assert read_results(file) == results_of(trial(0), trial(1, "block"))


def predicted(time: float | None, **changes: Any) -> TrialResult:
    return trial(0, prediction=Prediction(peak_memory_bytes=7, time=time, time_deviation=0.1), **changes)


def test_a_predicted_time_is_in_seconds_of_the_reference_beside_the_trial() -> None:
    (said,) = as_json(results_of(predicted(0.6, reference_step_time_s=2.0)))["trials"]
    assert said["predicted_peak_memory_bytes"] == 7
    assert (said["predicted_step_time_s"], said["predicted_step_time_spread_s"]) == pytest.approx((1.2, 0.2))


def test_without_a_reference_a_predicted_time_is_that_of_the_samples_of_a_step() -> None:
    objective = Objective(memory_cap_bytes=20 * MIB, has_reference=False)
    (said,) = as_json(results_of(predicted(0.6), objective=objective))["trials"]
    assert (said["predicted_step_time_s"], said["predicted_step_time_spread_s"]) == pytest.approx((1.2, 0.2))


@pytest.mark.parametrize("changes", [{"time": None}, {"time": 0.6, "reference_step_time_s": None}])
def test_a_time_that_cannot_be_said_in_seconds_is_null(changes: dict[str, Any]) -> None:
    (said,) = as_json(results_of(predicted(**changes)))["trials"]
    assert (said["predicted_step_time_s"], said["predicted_step_time_spread_s"]) == (None, None)


def test_files_of_before_spreads_were_predicted_are_read(tmp_path: Path) -> None:
    data = as_json(results_of(trial(0)))
    for record in (data["baseline"], *data["trials"]):
        del record["predicted_step_time_spread_s"]
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    assert read_results(file).trials[0].predicted_step_time_spread_s is None
