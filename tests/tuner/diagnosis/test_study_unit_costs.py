from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulation import INSPECTION, failure, measure, run

from mlflow_config import names
from runners.diagnosis.records import Diagnosis, DiagnosisSpec, UnitCost
from runners.replay_runner import ReplayRunner
from runners.trial import TrialResult, TrialSpec, TrialStatus
from tuner.results_file import read_results

COST = UnitCost(blocks="h", first=0, last=0, action="mlp", micro_batch_size=2, saved_bytes=2**20, rebuild_time_s=0.004)
WriteSearch = Callable[..., Path]


class MeasuringRunner(ReplayRunner):
    """Answers what blocks cost, and remembers how it was asked and how many trials had ended by then."""

    def __init__(self, outcome: Callable[[TrialSpec], TrialResult] = measure, answer: Diagnosis | None = None) -> None:
        super().__init__(outcome, inspection=INSPECTION)
        self.answer = answer or Diagnosis(unit_costs=(COST,))
        self.asked: list[DiagnosisSpec] = []

    def submit(self, spec: TrialSpec) -> None:
        assert not self.asked, "no trial runs beside or after it"
        super().submit(spec)

    def diagnosis(self, spec: DiagnosisSpec) -> Diagnosis:
        self.asked.append(spec)
        return self.answer


@pytest.fixture
def search(write_search: WriteSearch) -> Path:
    return write_search(search={"num_trials": 4, "time_limit": "200s", "sampler": "grid"})


def test_a_study_measures_them_once_at_its_end(search: Path) -> None:
    runner = MeasuringRunner()
    outcome = run(search, runner=runner)
    assert len(runner.asked) == 1
    assert outcome.results.unit_costs == [COST]
    assert read_results(outcome.folder.results_file).unit_costs == [COST]


def test_mlflow_keeps_them_beside_the_model(search: Path, tracking_database: Path) -> None:
    run(search, runner=MeasuringRunner())
    (kept,) = tracking_database.parent.rglob(names.UNIT_COSTS_FILE)
    assert [UnitCost.model_validate(cost) for cost in json.loads(kept.read_text())] == [COST]
    assert (kept.parent / names.INSPECTION_FILE).exists()


def test_they_take_a_small_part_of_its_time(search: Path) -> None:
    runner = MeasuringRunner()
    run(search, runner=runner)
    (spec,) = runner.asked
    assert spec.only_unit_costs
    assert spec.budget_s == pytest.approx(6.0)


def test_a_resumed_study_keeps_them(search: Path) -> None:
    run(search, runner=MeasuringRunner())
    again = MeasuringRunner()
    outcome = run(search, resume=True, runner=again)
    assert again.asked == []
    assert outcome.results.unit_costs == [COST]


@pytest.mark.parametrize(
    "answer, reason",
    [
        (Diagnosis(failure="the worker was lost"), "the worker was lost"),
        (
            Diagnosis(sizes_left_out=(2, 1)),
            "no micro-batch size could be measured within 6.0 s, 3% of search.time_limit; raise it, or see `tune "
            "check`",
        ),
    ],
    ids=["failed", "no time"],
)
def test_a_study_is_finished_without_them(
    search: Path, answer: Diagnosis, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        outcome = run(search, runner=MeasuringRunner(answer=answer))
    assert outcome.results.status == "finished"
    assert outcome.results.unit_costs == []
    assert f"costs of blocks and units: none, since {reason}" in caplog.messages


@pytest.mark.parametrize(
    "forward_time_s, num_asked", [(0.3, 0), (0.03, 1), (None, 1)], ids=["long", "short", "unknown"]
)
def test_no_process_is_started_where_the_trials_tell_that_the_time_is_too_short(
    write_search: WriteSearch, forward_time_s: float | None, num_asked: int, caplog: pytest.LogCaptureFixture
) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        return measure(spec).model_copy(update={"forward_time_s": forward_time_s})

    runner = MeasuringRunner(outcome)
    with caplog.at_level(logging.WARNING):
        run(write_search(search={"num_trials": 4, "time_limit": "30s", "sampler": "grid"}), runner=runner)
    assert len(runner.asked) == num_asked
    assert any("could be measured within 0.9 s" in message for message in caplog.messages) is (num_asked == 0)


def test_sizes_for_which_there_was_no_room_are_not_asked_for(search: Path) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.policy.batch.micro_batch_size == 2:
            return failure(0, TrialStatus.OUT_OF_MEMORY, "no room")
        return measure(spec)

    runner = MeasuringRunner(outcome)
    run(search, runner=runner)
    assert [spec.choices.micro_batch_sizes for spec in runner.asked] == [(1,)]


def test_a_study_in_which_nothing_ran_has_none(search: Path) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        return failure(0, TrialStatus.OUT_OF_MEMORY, "no room")

    runner: Any = MeasuringRunner(outcome)
    assert run(search, runner=runner).results.unit_costs == []
    assert runner.asked == []
