"""Signals and kills: what was measured is kept, and a resume finds what an undisturbed study finds."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from simulated_study import (
    EXHAUSTED,
    NUM_POLICIES,
    WriteSearch,
    mlflow_runs,
    num_measured,
    stored_results,
    study_folder,
)
from simulation import INSPECTION, measure, points, replay, run

from runners.replay_runner import ReplayRunner
from runners.trial import ModelInspection, PlayoffResult, PlayoffSpec, TrialResult, TrialSpec, TrialStatus, failed_trial


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


def test_an_interrupted_resume_keeps_the_playoff_that_still_holds(write_search: WriteSearch) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        signal.raise_signal(signal.SIGINT)
        return failed_trial(spec, TrialStatus.FAILED, "no")

    first = run(write_search(search__num_trials=6)).results
    assert first.playoff is not None
    resumed = run(write_search(search__num_trials=8), resume=True, runner=replay(outcome)).results
    assert (resumed.status, len(resumed.trials)) == ("interrupted", 7)
    assert (resumed.playoff, resumed.best) == (first.playoff, first.best)
