"""A recorded study answers as it was measured; the results of a simulated one are as good here as of a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import record_table
import simulation
from recorded_table import RecordedTable
from replay_search import run_search
from search_metrics import score_search
from table_file import read_table

from runners.trial import Prediction, TrialResult, TrialSpec, TrialStatus
from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import policy_to_dict
from search_spaces.registry import make_space
from tuner import assemble
from tuner.prediction.placement_features import PlacementFeatures
from tuner.results import StudyResults
from tuner.sampling.registry import SAMPLERS
from tuner.search_file.load import load_search_file
from tuner.study.record import search_data

MIB = 2**20
#: Between the peaks that the simulated model has, all of them quarters of a MiB.
CAP_BYTES = 20 * MIB + MIB // 8
ACTIONS = ["none", "attention", "mlp", "attention+mlp", "block"]


@pytest.fixture(scope="module")
def grid_study(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """Every policy of the simulated model: 25 placements at two micro-batches."""
    file = simulation.write_search(tmp_path_factory.mktemp("study"), placement__actions=ACTIONS)
    config = load_search_file(file)
    space = make_space("two_action", assemble.search_choices(config, simulation.INSPECTION))
    results = [
        simulation.measure(TrialSpec(trial_number=number, policy=policy, workload=simulation.WORKLOAD))
        for number, policy in enumerate(space.policies())
    ]
    return simulation.results_of(*map(_predicted, results), search=search_data(config))


def _predicted(result: TrialResult) -> TrialResult:
    return result.model_copy(update={"prediction": Prediction(peak_memory_bytes=result.peak_memory_bytes)})


def table_of(folder: Path, results: StudyResults, cap_bytes: int | None = None) -> RecordedTable:
    file = folder / "results.json"
    file.write_text(results.to_json())
    return RecordedTable(read_table(file, cap_bytes=cap_bytes))


def changed(results: StudyResults, change: Callable[[int], dict[str, Any] | None]) -> StudyResults:
    """Each trial's record changed by what the function says of its number; None drops it."""
    trials = [
        trial.model_copy(update=update) for trial in results.trials if (update := change(trial.number)) is not None
    ]
    return results.model_copy(update={"trials": trials, "front": [], "best": None})


def spec(results: StudyResults, number: int) -> TrialSpec:
    trial = results.trials[number]
    return TrialSpec(trial_number=7, policy=trial.to_policy(), workload=simulation.WORKLOAD)


def test_table_is_the_study(tmp_path: Path, grid_study: StudyResults) -> None:
    table = table_of(tmp_path, grid_study)
    assert table.num_policies == len(grid_study.trials) == 50
    assert table.notes == ()
    best = grid_study.best_trial()
    assert best is not None
    assert best.relative_speed is not None
    assert table.best.time == pytest.approx(1 / best.relative_speed)


def test_trial_answers_its_row(tmp_path: Path, grid_study: StudyResults) -> None:
    table = table_of(tmp_path, grid_study)
    for number in (0, 20, 49):
        recorded = grid_study.trials[number]
        answer = table.outcome(seed=0)(spec(grid_study, number))
        assert answer.trial_number == 7
        assert (answer.status, answer.step_time_s) == (TrialStatus.COMPLETED, recorded.step_time_s)
        assert answer.peak_memory_bytes == recorded.peak_memory_bytes
        assert answer.samples_per_second == pytest.approx(recorded.samples_per_second)


def test_compact_copy_is_the_same_table(tmp_path: Path, grid_study: StudyResults) -> None:
    text = record_table.compact_text(json.loads(grid_study.to_json()))
    assert len(text) < len(grid_study.to_json()) / 2
    file = tmp_path / "simulated.json"
    file.write_text(text)
    whole, compact = table_of(tmp_path, grid_study), RecordedTable(read_table(file))
    assert (compact.best, compact.num_policies, compact.device) == (whole.best, whole.num_policies, whole.device)
    assert compact.device == "a simulated CPU, 2 threads"


def test_policy_that_is_missing_fails_and_is_said(tmp_path: Path, grid_study: StudyResults) -> None:
    table = table_of(tmp_path, changed(grid_study, lambda number: None if number == 20 else {}))
    answer = table.outcome(seed=0)(spec(grid_study, 20))
    assert answer.status is TrialStatus.FAILED
    assert answer.reason == f"no trial of policy {answer.policy.key} was recorded"
    assert [note.partition(";")[0] for note in table.notes] == [
        "1 of the 50 policies of the search are not in the table"
    ]


def test_measured_peak_stands_in_for_a_prediction_and_is_said(tmp_path: Path, grid_study: StudyResults) -> None:
    results = changed(grid_study, lambda number: {"predicted_peak_memory_bytes": None} if number == 20 else {})
    table = table_of(tmp_path, results)
    assert [note.partition(":")[0] for note in table.notes] == ["1 of 50 rows have no predicted_peak_memory_bytes"]
    peak = table.forecast().predict(spec(grid_study, 20).policy, []).peak_memory_bytes
    assert peak == grid_study.trials[20].peak_memory_bytes


def test_speed_is_relative_only_where_all_rows_have_it(tmp_path: Path, grid_study: StudyResults) -> None:
    results = changed(grid_study, lambda number: {"relative_speed": None} if number == 20 else {})
    table = table_of(tmp_path, results)
    assert table.objective.has_reference is False
    actual = table.actual(spec(grid_study, 3).policy)
    assert actual is not None
    step_time_s = grid_study.trials[3].step_time_s
    assert step_time_s is not None
    assert actual.time == pytest.approx(step_time_s / 2)


def test_prices_are_the_flops_of_uniform_rows_else_a_share_of_forward(tmp_path: Path) -> None:
    """A list with twice the blocks has twice the price; two units of a block share it."""
    units = (("attention", "attn"), ("mlp", "mlp"))
    shape = ModelShape(1, (BlockList("a", "A", 2, units), BlockList("b", "B", 4, units)))
    choices = SearchChoices(shape, 1, (1,), ("none", "mlp", "block"))
    policies = list(make_space("two_action", choices).policies())
    rows: list[dict[str, Any]] = [
        {"policy": policy_to_dict(policy), "step_time_s": 1.0, "peak_memory_bytes": MIB} for policy in policies
    ]
    for row, policy in zip(rows, policies, strict=True):
        if [p.actions() for p in policy.placement] == [("block",) * 2, ("none",) * 4]:
            row["recomputed_flops_ratio"] = 0.07
    lists = [
        {"path": each.path, "num_blocks": each.num_blocks, "units": dict(each.units)} for each in shape.block_lists
    ]
    data = {
        "memory_cap_bytes": MIB,
        "global_batch_size": 1,
        "actions": ["none", "mlp", "block"],
        "block_lists": lists,
        "rows": rows,
    }
    (tmp_path / "two.json").write_text(json.dumps(data))
    table = RecordedTable(read_table(tmp_path / "two.json"))
    prices = table.forecast().proposer.price_means
    labels = [(label.list_index, label.action) for label in PlacementFeatures(table.choices).labels]
    by_label = dict(zip(labels, prices, strict=True))
    assert by_label[0, "block"] == 0.07
    assert by_label[1, "block"] == pytest.approx(1 / 3 * 4 / 6)
    assert by_label[1, "mlp"] == pytest.approx(by_label[1, "block"] / 2)


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "gp"])
def test_every_sampler_finds_the_best_of_a_table(tmp_path: Path, grid_study: StudyResults, sampler: str) -> None:
    table = table_of(tmp_path, grid_study, CAP_BYTES)
    trace = run_search(table, sampler, seed=0, num_trials=50)
    score = score_search(trace, table.best, table.objective.memory_cap_bytes)
    assert score.regrets[-1] == pytest.approx(0.0, abs=0.003)


def test_model_guided_is_at_the_best_of_a_table_sooner_than_the_plain_placements_end(
    tmp_path: Path, grid_study: StudyResults
) -> None:
    table = table_of(tmp_path, grid_study, CAP_BYTES)
    trace = run_search(table, "model_guided", seed=0, num_trials=50)
    score = score_search(trace, table.best, table.objective.memory_cap_bytes)
    assert score.stopped_early
    assert score.num_to_best is not None
    assert score.num_to_best <= 6
    assert score.num_over_cap == 0


def test_equal_seeds_are_equal_searches(tmp_path: Path, grid_study: StudyResults) -> None:
    table = table_of(tmp_path, grid_study, CAP_BYTES)
    once, again = (run_search(table, "tpe", seed=3, num_trials=15, num_workers=4) for _ in range(2))
    assert once == again
