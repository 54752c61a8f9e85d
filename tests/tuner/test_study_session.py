from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import simulation
from mlflow import MlflowClient
from mlflow.entities import Run
from simulation import INSPECTION, measure, points, replay, run

from runners.base import RunnerError
from runners.replay_runner import ReplayRunner
from runners.trial import (
    ModelInspection,
    PlayoffResult,
    PlayoffSpec,
    TrialResult,
    TrialSpec,
    TrialStatus,
    Verdict,
    Verification,
    failed_trial,
)
from search_spaces.model_shape import KeepSet, ModelShape
from search_spaces.policy_file import load_policy
from tuner.assemble import GoalError
from tuner.earlier_sessions import StudyChangedError, StudyExistsError
from tuner.results import StudyResults
from tuner.results_file import read_results
from tuner.study_folder import StudyBusyError, StudyFolderError
from tuner.study_storage import StudyStorageError

WriteSearch = Callable[..., Path]
NUM_POLICIES = 8
EXHAUSTED = f"space exhausted: all {NUM_POLICIES} policies were tried"


def study_folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "simulated"


def stored_results(tmp_path: Path) -> StudyResults:
    return read_results(study_folder(tmp_path) / "results.json")


def mlflow_runs(tmp_path: Path, search: str = "") -> list[Run]:
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, search))


def num_measured(tmp_path: Path) -> dict[str, int]:
    """How often each policy was measured, by the study's own storage."""
    study = optuna.load_study(study_name="simulated", storage=f"sqlite:///{study_folder(tmp_path) / 'study.db'}")
    keys = [json.dumps(t.params) for t in study.trials if t.state is optuna.trial.TrialState.COMPLETE]
    return {key: keys.count(key) for key in keys}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, empty_tracking_database: Path) -> Path:
    """A folder with a whole study in which nothing went wrong; nobody changes it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "runs").mkdir()
    shutil.copy(empty_tracking_database, folder / "runs" / "mlflow.db")
    run(simulation.write_search(folder))
    return folder


@pytest.fixture
def undisturbed(finished: Path) -> list[tuple[str, bool, bool]]:
    """What the simulated study says of each policy when nothing goes wrong."""
    return points(stored_results(finished))


def test_a_finished_study_leaves_these_files_and_no_others(finished: Path) -> None:
    results = stored_results(finished)
    assert (results.status, results.stop_reason) == ("finished", EXHAUSTED)
    names = {path.name for path in study_folder(finished).iterdir()}
    assert names == {".lock", "search.yaml", "study.db", "results.json", "policy.yaml", "report.html"}
    assert results.trials[0] == results.baseline
    best = results.best_trial()
    assert best is not None
    assert load_policy(study_folder(finished) / "policy.yaml").key == best.policy_key
    assert set(num_measured(finished).values()) == {1}


def test_mlflow_holds_the_study_and_each_of_its_trials(finished: Path) -> None:
    runs, results = mlflow_runs(finished), stored_results(finished)
    assert {r.info.status for r in runs} == {"FINISHED"}
    (parent,) = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    trials = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(trials) == len(runs) - 1 == NUM_POLICIES
    assert parent.data.tags["best_trial"] == str(results.best)
    (best,) = [r for r in trials if r.data.tags["is_best"] == "true"]
    assert best.data.tags["trial_number"] == str(results.best)
    on_front = sorted(int(r.data.tags["trial_number"]) for r in trials if r.data.tags["on_front"] == "true")
    assert on_front == sorted(results.front)


def test_a_running_study_can_be_read(
    write_search: WriteSearch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, int]] = []

    def outcome(spec: TrialSpec) -> TrialResult:
        found = stored_results(tmp_path)
        seen.append((found.status, len(found.trials)))
        assert (study_folder(tmp_path) / ".lock").read_text() == str(os.getpid())
        time.sleep(0.1)  # long enough for the next writing to be worth its time
        return measure(spec)

    with caplog.at_level(logging.INFO):
        run(write_search(search__num_trials=2), runner=replay(outcome))
    assert seen[:2] == [("running", 0), ("running", 1)]
    assert "blocks h: 2 x Block; units: attention=attn, mlp=mlp" in caplog.messages
    cap = "memory cap: 20,971,520 bytes (20.0 MiB), tested against the peak allocated on the CPU by torch"
    assert cap in caplog.messages
    said = [message.partition(":")[0].partition(" what")[0].partition(" one step")[0] for message in caplog.messages]
    assert said.count("dry run") == 2, "before it and after it"
    assert said.index("dry run") < said.index("measuring") < said.index("tracing")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_study_goes_on_to_what_an_undisturbed_one_finds(
    write_search: WriteSearch, tmp_path: Path, undisturbed: list[Any], number: signal.Signals
) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 3:
            signal.raise_signal(number)
        return measure(spec)

    file = write_search()
    runner = replay(outcome, capacity=2, latency_s=lambda spec: 10.0 if spec.trial_number == 4 else 1.0)
    first = run(file, runner=runner).results
    assert (first.status, first.stop_reason) == ("interrupted", "interrupted by the user")
    assert first == stored_results(tmp_path)
    completed = [t.number for t in first.trials if t.status is TrialStatus.COMPLETED]
    assert completed == [0, 1, 2, 3], "what had ended when the signal came is kept"
    assert {r.info.status for r in mlflow_runs(tmp_path)} == {"FINISHED", "KILLED"}
    resumed = run(file, resume=True).results
    assert (resumed.status, resumed.stop_reason) == ("finished", EXHAUSTED)
    assert points(resumed) == undisturbed
    assert set(num_measured(tmp_path).values()) == {1}
    assert [t.number for t in resumed.trials if t.is_baseline] == [0]


def test_an_interrupt_in_the_playoff_keeps_every_trial(write_search: WriteSearch, undisturbed: list[Any]) -> None:
    class Interrupted(ReplayRunner):
        def playoff(self, spec: PlayoffSpec) -> PlayoffResult:
            signal.raise_signal(signal.SIGINT)
            return super().playoff(spec)

    file = write_search()
    first = run(file, runner=Interrupted(measure, inspection=INSPECTION)).results
    assert (first.status, len(first.trials), first.playoff) == ("interrupted", NUM_POLICIES, None)
    resumed = run(file, resume=True).results
    assert (resumed.status, len(resumed.trials)) == ("finished", NUM_POLICIES)
    assert resumed.playoff is not None
    assert points(resumed) == undisturbed


def test_a_baseline_in_flight_when_the_signal_came_is_the_first_again(write_search: WriteSearch) -> None:
    class Interrupted(ReplayRunner):
        def collect(self, timeout_s: float) -> Sequence[TrialResult]:
            signal.raise_signal(signal.SIGTERM)
            return ()

    file = write_search(search__num_trials=2)
    first = run(file, runner=Interrupted(measure, inspection=INSPECTION)).results
    assert [(t.number, t.status) for t in first.trials] == [(0, TrialStatus.CANCELLED)]
    resumed = run(file, resume=True).results
    assert [(t.number, t.status) for t in resumed.trials if t.is_baseline] == [
        (0, TrialStatus.CANCELLED),
        (1, TrialStatus.COMPLETED),
    ]
    assert resumed.baseline is not None
    assert resumed.baseline.number == 1


def test_what_was_cancelled_is_tried_first_whatever_proposes(write_search: WriteSearch) -> None:
    """Seven policies are fixed; the eighth is one of many that a random sampler would hardly draw twice."""

    class Interrupted(ReplayRunner):
        def collect(self, timeout_s: float) -> Sequence[TrialResult]:
            if any(spec.trial_number == 7 for _, _, spec in self._in_flight):
                signal.raise_signal(signal.SIGINT)
                return ()
            return super().collect(timeout_s)

    actions = ["none", "attention", "mlp", "attention+mlp", "block"]
    file = write_search(search__num_trials=8, search__sampler="random", placement__actions=actions)
    run(file, runner=Interrupted(measure, inspection=INSPECTION))
    cancelled, again = run(file, resume=True).results.trials[7:]
    assert (cancelled.status, again.status) == (TrialStatus.CANCELLED, TrialStatus.COMPLETED)
    assert again.policy_key == cancelled.policy_key


def test_impatience_while_results_are_written_costs_nothing(write_search: WriteSearch, tmp_path: Path) -> None:
    class Interrupted(ReplayRunner):
        def cancel(self) -> Sequence[TrialResult]:
            signal.raise_signal(signal.SIGINT)
            return super().cancel()

    runner = Interrupted(measure, inspection=INSPECTION)
    assert run(write_search(search__num_trials=1), runner=runner).results.status == "finished"
    assert stored_results(tmp_path).status == "finished"
    assert {r.info.status for r in mlflow_runs(tmp_path)} == {"FINISHED"}


def test_signals_are_the_callers_again_afterwards(write_search: WriteSearch) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run(write_search(search__num_trials=1))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_while_the_model_is_looked_at_leaves_nothing(write_search: WriteSearch, tmp_path: Path) -> None:
    class Interrupted(ReplayRunner):
        def inspect(self, spec: object) -> ModelInspection:
            signal.raise_signal(signal.SIGTERM)
            return INSPECTION

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        run(write_search(), runner=Interrupted(measure))
    assert not study_folder(tmp_path).exists()


def drive(file: Path, *options: str) -> subprocess.Popen[str]:
    """Another process that runs the study, as `tune run` does."""
    options = (*options, "run", str(file))
    script = Path(simulation.__file__)
    return subprocess.Popen(
        [sys.executable, script, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def running_driver(file: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver that is in the middle of trial 2."""
    driver = drive(file, "--wait-in", "2")
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "waiting\n"
        yield driver
    finally:
        driver.kill()
        driver.communicate()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, empty_tracking_database: Path) -> Path:
    """A folder with a study whose driver was killed in trial 4; for copies."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "runs").mkdir()
    shutil.copy(empty_tracking_database, folder / "runs" / "mlflow.db")
    driver = drive(simulation.write_search(folder), "--die-in", "4")
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL, said
    return folder


@pytest.fixture
def copy_of_killed(killed: Path, tmp_path: Path) -> Path:
    """The search file of a killed study."""
    shutil.copytree(killed / "runs", tmp_path / "runs")
    return simulation.write_search(tmp_path)


def test_a_killed_driver_loses_only_the_trial_in_flight(
    copy_of_killed: Path, tmp_path: Path, undisturbed: list[Any]
) -> None:
    assert stored_results(tmp_path).status == "running"
    left_running = {r.data.tags.get("trial_number") for r in mlflow_runs(tmp_path, "status = 'RUNNING'")}
    assert None in left_running, "the study's own run; MLflow may be some trials behind"
    resumed = run(copy_of_killed, resume=True).results
    assert (resumed.status, resumed.stop_reason) == ("finished", EXHAUSTED)
    (lost,) = [t for t in resumed.trials if t.status is TrialStatus.CANCELLED]
    assert (lost.number, lost.reason) == (4, "interrupted: the process that ran the study ended first")
    again = next(t for t in resumed.trials if t.policy_key == lost.policy_key and t.number != 4)
    assert again.number == 5, "what was lost is tried first"
    assert points(resumed) == undisturbed
    assert set(num_measured(tmp_path).values()) == {1}
    assert [t.number for t in resumed.trials if t.is_baseline] == [0]
    assert mlflow_runs(tmp_path, "status = 'RUNNING'") == []
    (killed_run,) = mlflow_runs(tmp_path, "status = 'KILLED'")
    assert killed_run.data.tags["trial_number"] == "4"


def test_a_trial_that_was_stored_but_not_told_counts(copy_of_killed: Path, tmp_path: Path) -> None:
    storage = optuna.storages.RDBStorage(f"sqlite:///{study_folder(tmp_path) / 'study.db'}")
    (study,) = storage.get_all_studies()
    (left,) = storage.get_all_trials(study._study_id, states=(optuna.trial.TrialState.RUNNING,))
    told = storage.get_all_trials(study._study_id)[3].user_attrs["result"]
    # As the driver does between two statements: the whole result first, then the trial's state.
    storage.set_trial_user_attr(left._trial_id, "result", {**told, "trial_number": 4, "relative_speed": 0.77})
    storage.remove_session()
    resumed = run(copy_of_killed, resume=True).results
    kept = resumed.trial(4)
    assert kept is not None
    assert (kept.status, kept.relative_speed) == (TrialStatus.COMPLETED, 0.77)
    assert len(resumed.trials) == NUM_POLICIES


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


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Whatever happens within, no file of the study changes but the lock."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in study_folder(folder).iterdir() if path.name != ".lock"}

    before = files()
    yield
    assert files() == before


def test_a_study_that_exists_is_not_overwritten(finished: Path) -> None:
    message = r"simulated is in .*runs/simulated already; continue it with --resume"
    with untouched(finished), pytest.raises(StudyExistsError, match=message):
        run(simulation.write_search(finished))


def test_there_must_be_something_to_resume(write_search: WriteSearch, tmp_path: Path) -> None:
    with pytest.raises(StudyExistsError, match=r"no study simulated in .*runs to resume; run without --resume"):
        run(write_search(), resume=True)
    assert not study_folder(tmp_path).exists()


def test_a_study_goes_on_on_another_node_where_its_storage_is_shared(write_search: WriteSearch, tmp_path: Path) -> None:
    """The node of the driver is lost, and the study's folder with it."""
    shared = {"storage": f"sqlite:///{tmp_path / 'shared.db'}", "tracking": {"uri": f"sqlite:///{tmp_path / 'ml.db'}"}}
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    first = run(write_search(**shared, output_dir=here, search__num_trials=3)).results
    shutil.rmtree(here)
    resumed = run(write_search(**shared, output_dir=there, search__num_trials=5), resume=True).results
    assert (resumed.status, len(resumed.trials)) == ("finished", 5)
    assert [t.policy_key for t in resumed.trials[:3]] == [t.policy_key for t in first.trials]
    assert [t.started_at for t in resumed.trials[:3]] == [t.started_at for t in first.trials]
    assert [t.number for t in resumed.trials if t.is_baseline] == [0]
    assert (Path(there) / "simulated/policy.yaml").exists()


def test_a_shared_storage_must_hold_the_study_that_is_resumed(write_search: WriteSearch, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    with pytest.raises(
        StudyExistsError, match=r"no study simulated in .* nor in .*shared\.db.* to resume; run without"
    ):
        run(write_search(storage=storage), resume=True)
    run(write_search(storage=storage, search__num_trials=1))  # The name is free still.


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


def test_an_interrupted_resume_keeps_the_playoff_that_still_holds(write_search: WriteSearch) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        signal.raise_signal(signal.SIGINT)
        return failed_trial(spec, TrialStatus.FAILED, "no")

    first = run(write_search(search__num_trials=6)).results
    assert first.playoff is not None
    resumed = run(write_search(search__num_trials=8), resume=True, runner=replay(outcome)).results
    assert (resumed.status, len(resumed.trials)) == ("interrupted", 7)
    assert (resumed.playoff, resumed.best) == (first.playoff, first.best)


def test_the_playoff_names_the_winner(write_search: WriteSearch, undisturbed: list[Any]) -> None:
    class SecondIsFaster(ReplayRunner):
        def playoff(self, spec: PlayoffSpec) -> PlayoffResult:
            times = [(1.0 if index == 1 else 2.0,) * 5 for index in range(len(spec.policies))]
            return PlayoffResult(step_times_s=tuple(times))

    results = run(write_search(), runner=SecondIsFaster(measure, inspection=INSPECTION)).results
    assert results.playoff is not None
    assert results.best == results.playoff.trials[1]
    own_best = next(key for key, _, is_best in undisturbed if is_best)
    assert results.trials[results.best].policy_key != own_best


def test_a_playoff_that_fails_leaves_the_trials_own_figures(
    write_search: WriteSearch, undisturbed: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(ReplayRunner):
        def playoff(self, spec: PlayoffSpec) -> PlayoffResult:
            return PlayoffResult(failure="the worker was lost")

    with caplog.at_level(logging.WARNING):
        results = run(write_search(), runner=Failing(measure, inspection=INSPECTION)).results
    assert (results.status, results.playoff) == ("finished", None)
    assert points(results) == undisturbed
    assert "playoff: the worker was lost; the winner is named by the trials' own figures" in caplog.messages


def test_where_nothing_is_feasible_there_is_no_policy(write_search: WriteSearch, tmp_path: Path) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        (study_folder(tmp_path) / "policy.yaml").write_text("of another time\n")
        return measure(spec)

    results = run(write_search(memory_cap="1MiB", search__num_trials=2), runner=replay(outcome)).results
    assert (results.status, results.best, results.front) == ("finished", None, [])
    assert not (study_folder(tmp_path) / "policy.yaml").exists()
    (parent,) = mlflow_runs(tmp_path, "tags.best_trial = 'none'")
    assert parent.info.status == "FINISHED"


@pytest.mark.parametrize("verdict", [Verdict.MISMATCH, Verdict.UNVERIFIED])
def test_what_is_not_proven_never_wins(
    write_search: WriteSearch, tmp_path: Path, undisturbed: list[Any], verdict: Verdict
) -> None:
    """What would be the best is not proven."""
    best = next(key for key, _, is_best in undisturbed if is_best)

    def outcome(spec: TrialSpec) -> TrialResult:
        result = measure(spec)
        if result.policy.key == best:
            return result.model_copy(update={"verification": Verification(verdict=verdict, reason="grad differs")})
        return result

    results = run(write_search(), runner=replay(outcome)).results
    (unproven,) = [t.number for t in results.trials if t.policy_key == best]
    assert results.best is not None
    assert unproven not in {*results.front, results.best}
    assert load_policy(study_folder(tmp_path) / "policy.yaml").key != best


def test_proofs_can_be_switched_off_but_a_mismatch_stays_one(write_search: WriteSearch) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        verification = Verification(verdict=Verdict.MISMATCH) if spec.trial_number == 1 else None
        return measure(spec).model_copy(update={"verification": verification})

    results = run(write_search(measurement__verify=False, search__num_trials=3), runner=replay(outcome)).results
    assert results.best is not None
    assert [t.number for t in results.trials if not t.feasible and t.peak_memory_bytes == 12 * simulation.MIB] == [1]


def test_a_model_that_fails_plainly_fails_the_study(write_search: WriteSearch, tmp_path: Path) -> None:
    runner = replay(lambda spec: failed_trial(spec, TrialStatus.FAILED, "h.0: shapes differ", detail="Traceback ..."))
    results = run(write_search(), runner=runner).results
    assert (results.status, results.best) == ("failed", None)
    assert results.stop_reason == "the model does not train without recompute: h.0: shapes differ"
    assert (study_folder(tmp_path) / "trials.log").read_text() == "trial 0: h.0: shapes differ\nTraceback ...\n"
    assert {r.info.status for r in mlflow_runs(tmp_path)} == {"FAILED"}


def test_a_cluster_that_breaks_down_fails_the_study_and_keeps_its_trials(write_search: WriteSearch) -> None:
    class Breaking(ReplayRunner):
        def submit(self, spec: TrialSpec) -> None:
            if spec.trial_number == 3:
                raise RunnerError("no node gave CPU: 2 within 120 s")
            super().submit(spec)

    file = write_search(search__num_trials=4)
    results = run(file, runner=Breaking(measure, inspection=INSPECTION)).results
    assert (results.status, results.stop_reason) == ("failed", "no node gave CPU: 2 within 120 s")
    assert len(results.trials) == 3
    assert run(file, resume=True).results.stop_reason == "all 4 trials were run"


def test_a_bug_is_raised_and_the_study_says_failed(write_search: WriteSearch, tmp_path: Path) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 2:
            raise ZeroDivisionError("a bug of ours")
        return measure(spec)

    file = write_search(search__num_trials=3)
    with pytest.raises(ZeroDivisionError, match="a bug of ours"):
        run(file, runner=replay(outcome))
    results = stored_results(tmp_path)
    assert (results.status, len(results.trials)) == ("failed", 2)
    assert mlflow_runs(tmp_path, "status = 'RUNNING'") == []
    assert run(file, resume=True).results.status == "finished"


def test_a_refused_search_leaves_no_folder(write_search: WriteSearch, tmp_path: Path) -> None:
    with pytest.raises(GoalError, match="memory_cap is 2TiB"):
        run(write_search(memory_cap="2TiB"))
    with pytest.raises(RunnerError, match=r"model\.py:build: no inspection"):
        run(write_search(), runner=ReplayRunner(measure))
    with pytest.raises(StudyStorageError, match="cannot be used"):
        run(write_search(storage="postgresql://nobody@127.0.0.1:1/x"))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mlflow.db"]


def test_a_database_that_is_out_of_reach_is_one_line_without_credentials(write_search: WriteSearch) -> None:
    file = write_search(storage="postgresql://nobody:s3cret@127.0.0.1:1/x?password=s3cret")
    with pytest.raises(StudyStorageError, match=r"storage is postgresql://\*\*\*@127\.0\.0\.1:1/x") as refusal:
        run(file)
    (line,) = refusal.value.lines
    assert "\n" not in line
    assert "s3cret" not in line
    assert "nobody" not in line
    assert "correct the address, or leave it out" in line


def test_a_broken_study_db_is_named(write_search: WriteSearch, tmp_path: Path) -> None:
    file = write_search(search__num_trials=1)
    run(file)
    (study_folder(tmp_path) / "study.db").write_bytes(b"no database" * 1000)
    before = (study_folder(tmp_path) / "results.json").read_bytes()
    with pytest.raises(StudyStorageError, match=r"runs/simulated/study\.db cannot be used: file is not a database; "):
        run(file, resume=True)
    assert (study_folder(tmp_path) / "results.json").read_bytes() == before


def test_a_lost_study_db_is_made_up_for_by_the_results(
    write_search: WriteSearch, tmp_path: Path, undisturbed: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = write_search(search__num_trials=5)
    before = run(file).results
    runs_before = {r.info.run_id for r in mlflow_runs(tmp_path)}
    (study_folder(tmp_path) / "study.db").unlink()
    with caplog.at_level(logging.WARNING):
        again = run(file, resume=True).results
    assert again.trials == before.trials
    assert {r.info.run_id for r in mlflow_runs(tmp_path)} == runs_before, "MLflow has each trial once"
    (said,) = [message for message in caplog.messages if "no trials" in message]
    assert re.search(r"study\.db has no trials of study simulated any more; the 5 of .*results\.json are taken", said)
    assert points(run(write_search(), resume=True).results) == undisturbed


def test_a_lost_study_db_beside_results_that_nobody_can_read_is_refused(
    write_search: WriteSearch, tmp_path: Path
) -> None:
    file = write_search(search__num_trials=1)
    run(file)
    (study_folder(tmp_path) / "study.db").unlink()
    (study_folder(tmp_path) / "results.json").write_text("{")
    with pytest.raises(StudyExistsError, match=r"results\.json cannot be read, and .*study\.db has no trials of this"):
        run(file, resume=True)
    assert (study_folder(tmp_path) / "results.json").read_text() == "{"


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


def test_a_result_that_the_storage_did_not_take_is_kept(
    write_search: WriteSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of results is gone when trial 2 ends, and back when the study is resumed."""
    monkeypatch.setattr("tuner.study_storage._PATIENCE_S", 0.0)

    def rename_table(before: str, after: str) -> None:
        with contextlib.closing(sqlite3.connect(study_folder(tmp_path) / "study.db")) as connection:
            connection.execute(f"ALTER TABLE {before} RENAME TO {after}")

    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 2:
            rename_table("trial_values", "elsewhere")
        return measure(spec)

    file = write_search(search__num_trials=4)
    failed = run(file, runner=replay(outcome)).results
    assert (failed.status, len(failed.trials)) == ("failed", 3)
    assert failed.stop_reason is not None
    assert re.search(r"study\.db cannot be used: no such table: trial_values; free space", failed.stop_reason)
    rename_table("elsewhere", "trial_values")
    resumed = run(file, resume=True).results
    assert resumed.trials[:3] == failed.trials
    assert set(num_measured(tmp_path).values()) == {1}


def test_a_named_storage_serves_several_studies(write_search: WriteSearch, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    one = run(write_search(study="one", storage=storage, search__num_trials=1)).results
    two = run(write_search(study="two", storage=storage, search__num_trials=2)).results
    assert (len(one.trials), len(two.trials)) == (1, 2)
    assert not (tmp_path / "runs" / "one" / "study.db").exists()
    resumed = run(write_search(study="one", storage=storage, search__num_trials=2), resume=True).results
    assert len(resumed.trials) == 2


def test_a_study_of_the_same_name_in_a_shared_storage_is_not_joined(write_search: WriteSearch, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    run(write_search(storage=storage, search__num_trials=1))
    file = write_search(storage=storage, output_dir=str(tmp_path / "elsewhere"), tracking__uri=None)
    with pytest.raises(StudyExistsError, match=r"storage is sqlite.*shared\.db, which holds trials of a study of this"):
        run(file)
    assert not (tmp_path / "elsewhere" / "simulated").exists()


def test_an_output_dir_that_is_a_file_is_one_line(write_search: WriteSearch, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StudyFolderError, match=r"taken/simulated cannot be written \(Not a directory\)"):
        run(write_search(output_dir=str(tmp_path / "taken")))


def test_an_output_dir_that_no_address_can_hold_is_one_line(write_search: WriteSearch, tmp_path: Path) -> None:
    with pytest.raises(GoalError, match=r"output_dir leads to .*100%.*; the address of a database cannot hold '%'"):
        run(write_search(output_dir=str(tmp_path / "100%")))


def test_credentials_are_in_no_file(write_search: WriteSearch, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}?password=s3cret"
    results = run(write_search(storage=storage, search__num_trials=1)).results
    assert "s3cret" not in results.to_json()
    assert "s3cret" not in (study_folder(tmp_path) / "search.yaml").read_text()
    assert "s3cret" not in (study_folder(tmp_path) / "report.html").read_text()


def test_mlflow_out_of_order_costs_no_trial_is_said_once_and_made_up_for(
    write_search: WriteSearch, tmp_path: Path, tracking_database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tracking_database.read_bytes()
    tracking_database.write_bytes(b"no database" * 1000)

    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 2:
            tracking_database.write_bytes(whole)
        return measure(spec)

    with caplog.at_level(logging.WARNING):
        results = run(write_search(search__num_trials=4), runner=replay(outcome)).results
    assert (results.status, len(results.trials)) == ("finished", 4)
    said = [message for message in caplog.messages if message.startswith("MLflow: ")]
    assert len(said) == 2, said
    assert said[0].endswith("the search goes on and records again later")
    assert said[1] == "MLflow: recording works again"
    trials = mlflow_runs(tmp_path, "tags.trial_number != ''")
    assert sorted(int(r.data.tags["trial_number"]) for r in trials) == [0, 1, 2, 3]
    assert {r.info.status for r in mlflow_runs(tmp_path)} == {"FINISHED"}


def test_mlflow_gone_for_good_costs_no_trial_and_a_resume_makes_up_for_it(
    write_search: WriteSearch, tmp_path: Path, tracking_database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tracking_database.read_bytes()
    tracking_database.write_bytes(b"no database" * 1000)
    file = write_search(search__num_trials=2)
    with caplog.at_level(logging.WARNING):
        results = run(file).results
    assert (results.status, len(results.trials)) == ("finished", 2)
    assert len([message for message in caplog.messages if message.startswith("MLflow: ")]) == 1
    tracking_database.write_bytes(whole)
    run(file, resume=True)
    assert len(mlflow_runs(tmp_path)) == 3


def test_a_store_named_by_the_shell_is_not_used_and_that_is_said(
    write_search: WriteSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:s3cret@127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        run(write_search(search__num_trials=1))
    assert "only search.yaml decides" in caplog.text
    assert "s3cret" not in caplog.text
    assert len(mlflow_runs(tmp_path)) == 2
