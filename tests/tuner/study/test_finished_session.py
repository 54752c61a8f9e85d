"""What a study leaves, in its folder and in MLflow, and what it says of its trials."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
import simulation
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

from runners.base import RunnerError
from runners.replay_runner import ReplayRunner
from runners.trial import (
    PlayoffResult,
    PlayoffSpec,
    TrialResult,
    TrialSpec,
    TrialStatus,
    Verdict,
    Verification,
    failed_trial,
)
from search_spaces.policy_file import load_policy
from tuner.assemble import GoalError
from tuner.study.folder import StudyFolderError
from tuner.study.storage import StudyStorageError


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
