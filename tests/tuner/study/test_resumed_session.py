"""What may go on, and what a resume may change."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import simulation
from simulated_study import (
    NUM_POLICIES,
    WriteSearch,
    mlflow_runs,
    running_driver,
    stored_results,
    study_folder,
    untouched,
)
from simulation import INSPECTION, measure, points, replay, run

from runners.replay_runner import ReplayRunner
from runners.trial import ModelInspection, TrialResult, TrialSpec
from search_spaces.model_shape import KeepSet, ModelShape
from tuner.study.earlier_sessions import StudyChangedError, StudyExistsError
from tuner.study.folder import StudyBusyError


def test_a_second_driver_is_told_who_runs_the_study(write_search: WriteSearch, tmp_path: Path) -> None:
    file = write_search(search__num_trials=3)
    with running_driver(file) as driver:
        for resume in (False, True):
            with pytest.raises(StudyBusyError, match=f"is in use by process {driver.pid}, which runs this study now"):
                run(file, resume=resume, runner=ReplayRunner(measure))  # not even the model is looked at
        driver.terminate()
        said, logged = driver.communicate(timeout=60)
    assert driver.returncode == 130, logged
    assert "Stopped: interrupted by the user.\nWhat was measured is kept; continue with --resume.\n" in said
    assert stored_results(tmp_path).status == "interrupted"
    assert run(file, resume=True).results.stop_reason == "all 3 trials were run"


def test_a_study_that_exists_is_not_overwritten(finished: Path) -> None:
    message = r"simulated is in .*runs/simulated already; continue it with --resume"
    with untouched(finished), pytest.raises(StudyExistsError, match=message):
        run(simulation.write_search(finished))


def test_there_must_be_something_to_resume(write_search: WriteSearch, tmp_path: Path) -> None:
    with pytest.raises(StudyExistsError, match=r"no study simulated in .*runs to resume; run without --resume"):
        run(write_search(), resume=True)
    assert not study_folder(tmp_path).exists()


def test_another_driver_that_was_faster_is_noticed(write_search: WriteSearch) -> None:
    """Both saw no study; by the time this one has looked at the model, the other one is through."""
    file = write_search(search__num_trials=1)

    class Slow(ReplayRunner):
        def inspect(self, spec: object) -> ModelInspection:
            run(file)
            return INSPECTION

    with pytest.raises(StudyExistsError, match=r"is in .*runs/simulated already; continue it with --resume"):
        run(file, runner=Slow(measure))


@pytest.mark.parametrize(
    "change, lines",
    [
        ({"memory_cap": "30MiB"}, ["memory_cap: '20MiB' -> '30MiB'"]),
        ({"batch__global_batch_size": 4}, ["batch.global_batch_size: 2 -> 4"]),
        ({"model__args": {"depth": 3}}, ["model.args.depth: None -> 3"]),
        ({"placement__actions": ["none", "mlp"]}, ["placement.actions: ['none', 'block'] -> ['none', 'mlp']"]),
        ({"measurement__verify": False}, ["measurement.verify: True -> False"]),
        ({"runner__device": "cpu"}, ["runner.device: 'auto' -> 'cpu'"]),
        (
            {"memory_cap": "30MiB", "optimizer__name": "sgd"},
            ["optimizer.name: 'adamw' -> 'sgd'", "memory_cap: '20MiB' -> '30MiB'"],
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_a_resume_cannot_change_the_goal(finished: Path, change: dict[str, Any], lines: list[str]) -> None:
    message = "cannot be resumed: what it measures has changed"
    with untouched(finished), pytest.raises(StudyChangedError, match=message) as refusal:
        run(simulation.write_search(finished, **change), resume=True)
    assert list(refusal.value.lines[1:]) == [f"  {line}" for line in lines]


def test_a_model_that_was_edited_under_the_same_name_is_another_one(finished: Path) -> None:
    edited = INSPECTION.model_copy(update={"shape": ModelShape(1001, simulation.SHAPE.block_lists)})
    with untouched(finished), pytest.raises(StudyChangedError, match=r"found\.num_parameters: 1000 -> 1001"):
        run(simulation.write_search(finished), resume=True, runner=replay(inspection=edited))


@pytest.mark.parametrize("name, other", [("torch", "2.14.0"), ("device_kind", "cuda"), ("num_threads", 1)])
def test_a_machine_whose_figures_do_not_compare_is_refused(finished: Path, name: str, other: object) -> None:
    elsewhere = INSPECTION.model_copy(update={"environment": {**simulation.ENVIRONMENT, name: other}})
    with untouched(finished), pytest.raises(StudyChangedError, match=rf"found\.{name}: "):
        run(simulation.write_search(finished), resume=True, runner=replay(inspection=elsewhere))


def test_a_resume_may_search_for_longer(write_search: WriteSearch) -> None:
    first = run(write_search(search__num_trials=3)).results
    assert (first.stop_reason, len(first.trials)) == ("all 3 trials were run", 3)
    resumed = run(write_search(search__num_trials=5, search__time_limit="1h", search__sampler="tpe"), resume=True)
    assert (resumed.results.stop_reason, len(resumed.results.trials)) == ("all 5 trials were run", 5)
    assert resumed.results.search["search"]["num_trials"] == 5
    assert len([t for t in resumed.results.trials if t.is_baseline]) == 1


def test_time_of_earlier_sessions_counts(write_search: WriteSearch) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        time.sleep(1.1)
        return measure(spec)

    run(write_search(search__num_trials=1), runner=replay(outcome))
    resumed = run(write_search(search__num_trials=5, search__time_limit="1s"), resume=True).results
    assert (resumed.stop_reason, len(resumed.trials)) == ("the time limit of 1 s was reached", 1)


def test_a_playoff_is_held_again_where_others_would_meet(write_search: WriteSearch, undisturbed: list[Any]) -> None:
    first = run(write_search(search__num_trials=2)).results
    assert first.playoff is not None
    resumed = run(write_search(), resume=True).results
    assert resumed.playoff is not None
    assert resumed.playoff.trials != first.playoff.trials
    assert points(resumed) == undisturbed


def test_a_study_with_nothing_left_to_do_stays_as_it_is(write_search: WriteSearch, tmp_path: Path) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        raise AssertionError("a trial was started")

    file = write_search()
    first = run(file).results
    assert first.playoff is not None
    idle = ReplayRunner(outcome, inspection=INSPECTION)  # its playoff would ask for the outcome as well
    assert run(file, resume=True, runner=idle).results == first
    assert {r.info.status for r in mlflow_runs(tmp_path)} == {"FINISHED"}
    assert len(mlflow_runs(tmp_path)) == 1 + NUM_POLICIES


@pytest.mark.parametrize("results_text", [None, "{"], ids=["all files", "results.json is damaged"])
def test_a_resumed_study_keeps_the_keep_sets_that_its_first_session_found(
    write_search: WriteSearch, tmp_path: Path, results_text: str | None
) -> None:
    def finds(keep: str) -> ReplayRunner:
        blocks = replace(INSPECTION.shape.block_lists[0], keep_sets=(KeepSet("selective", (keep,)),))
        shape = replace(INSPECTION.shape, block_lists=(blocks,))
        return replay(inspection=INSPECTION.model_copy(update={"shape": shape}))

    file = write_search(search__num_trials=1, placement__actions=["none", "selective"])
    first = run(file, runner=finds("aten.bmm.default")).results
    if results_text is not None:
        (study_folder(tmp_path) / "results.json").write_text(results_text)
    again = run(file, runner=finds("aten.mm.default"), resume=True).results
    assert (again.model, again.trials) == (first.model, first.trials)
    assert [each.keep for each in again.model.block_lists[0].keep_sets] == [["aten.bmm.default"]]
