from __future__ import annotations

import pytest
from simulation import ENVIRONMENT, INSPECTION, MIB, SEARCH, failure, policy, results_of, trial

from runners.trial import TrialResult, TrialStatus
from tuner.objective import Objective
from tuner.results import StudyResults
from tuner.results_ledger import ResultsLedger

#: In order of their end: out of order of number, one that fails, the baseline twice, and several leaders in turn.
STREAM = [
    trial(1, "block"),
    failure(2, TrialStatus.FAILED, "h.0: shapes differ", "mlp"),
    trial(0, status=TrialStatus.CANCELLED, samples_per_second=None),
    trial(4, "attention", 1),
    trial(3),
    trial(6, "mlp", 1),
    trial(5, "attention+mlp", 1),
]


@pytest.fixture
def ledger() -> ResultsLedger:
    return ResultsLedger(
        study="simulated",
        search=SEARCH,
        inspection=INSPECTION,
        environment=ENVIRONMENT,
        baseline_key=policy().key,
        objective=Objective(memory_cap_bytes=20 * MIB),
    )


def as_of_now(ledger: ResultsLedger) -> StudyResults:
    return ledger.results(status="finished", stop_reason="all trials were run")


def test_the_ledger_says_at_any_moment_what_all_results_say(ledger: ResultsLedger) -> None:
    for count, result in enumerate(STREAM, start=1):
        ledger.add(result)
        results = as_of_now(ledger)
        assert results == results_of(*STREAM[:count])
        assert StudyResults.model_validate_json(results.to_json()) == results
    assert [t.number for t in results.trials] == [0, 1, 2, 3, 4, 5, 6]
    assert results.baseline is results.trials[3]


def test_only_records_whose_place_changed_are_new_ones(ledger: ResultsLedger) -> None:
    before: dict[int, object] = {}
    places: dict[int, tuple[bool, bool]] = {}
    for result in STREAM:
        ledger.add(result)
        for record in as_of_now(ledger).trials:
            place = (record.on_front, record.is_best)
            moved = places.get(record.number, place) != place
            assert (before.get(record.number, record) is not record) == moved
            before[record.number], places[record.number] = record, place


def test_what_was_handed_out_does_not_change(ledger: ResultsLedger) -> None:
    ledger.add(STREAM[0])
    handed_out = as_of_now(ledger)
    text = handed_out.to_json()
    for result in STREAM[1:]:
        ledger.add(result)
        as_of_now(ledger)
    assert handed_out.to_json() == text


def test_asked_again_the_answer_is_the_same_one(ledger: ResultsLedger) -> None:
    ledger.add(STREAM[0])
    assert as_of_now(ledger) is as_of_now(ledger)
    assert ledger.results(status="running", stop_reason=None).status == "running"


def test_a_trial_ends_once(ledger: ResultsLedger) -> None:
    def again() -> TrialResult:
        return trial(1, "block")

    ledger.add(again())
    with pytest.raises(ValueError, match="trial 1 has a result already"):
        ledger.add(again())
