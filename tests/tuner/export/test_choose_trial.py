from __future__ import annotations

import pytest
from simulation import MIB, failure, results_of, trial

from runners.trial import TrialStatus, Verdict, Verification
from tuner.export.base import ExportError
from tuner.export.choose_trial import choose_trial
from tuner.results import StudyResults
from tuner.speed_ratio import Playoff

MISMATCH = Verification(verdict=Verdict.MISMATCH, reason="grad of h.0.mlp differs")


@pytest.fixture
def study() -> StudyResults:
    """Within 20 MiB: trial 4 at 18 MiB is the fastest, 1 at 12 MiB the next, 3 at 11 MiB the slowest of the front."""
    return results_of(
        trial(0),
        trial(1, "block"),
        trial(2, "none", 1),
        trial(3, "block", 1),
        trial(4, "mlp"),
        trial(5, "attention+mlp", verification=MISMATCH),
        failure(6, TrialStatus.FAILED, "h.0: shapes differ"),
    )


def test_the_best_is_the_default(study: StudyResults) -> None:
    assert choose_trial(study).number == study.best == 4


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_any_feasible_trial_can_be_named(study: StudyResults, number: int) -> None:
    assert choose_trial(study, number=number).number == number


@pytest.mark.parametrize(
    "number, why",
    [
        (0, r"its peak is 30\.0% over the cap"),
        (5, "it trains another model: grad of h.0.mlp differs"),
        (6, "failed: h.0: shapes differ"),
    ],
)
def test_what_is_not_feasible_is_refused_with_the_reason(study: StudyResults, number: int, why: str) -> None:
    message = (
        rf"--trial is {number}, which is not feasible \({why}\) and is therefore never exported; the front .* 4, 1, 3"
    )
    with pytest.raises(ExportError, match=message):
        choose_trial(study, number=number)


@pytest.mark.parametrize("number", [-1, 7])
def test_an_unknown_trial_is_answered_with_those_there_are(study: StudyResults, number: int) -> None:
    with pytest.raises(
        ExportError, match=rf"--trial is {number}, which study simulated does not have; feasible trials are 1, 2, 3, 4"
    ):
        choose_trial(study, number=number)


@pytest.mark.parametrize("cap, number", [(20, 4), (18, 4), (17, 1), (12, 1), (11, 3)])
def test_the_fastest_within_a_tighter_cap(study: StudyResults, cap: int, number: int) -> None:
    assert choose_trial(study, memory_cap_bytes=cap * MIB).number == number


def test_a_wider_cap_admits_nothing_that_the_study_found_infeasible(study: StudyResults) -> None:
    assert choose_trial(study, memory_cap_bytes=1000 * MIB).number == 4


def test_the_playoff_decides_under_a_cap_as_well() -> None:
    playoff = Playoff(trials=(0, 1), step_times_s=((1.0,) * 5, (2.0,) * 5))
    study = results_of(trial(0, "block"), trial(1, "mlp"), playoff=playoff)
    assert study.best == 0
    assert choose_trial(study, memory_cap_bytes=19 * MIB).number == 0


def test_a_tie_that_decided_on_the_best_decides_under_a_cap_as_well() -> None:
    spread = {"relative_speed_spread": 0.02}
    study = results_of(trial(0, "mlp", relative_speed=1.01, **spread), trial(1, "block", relative_speed=1.0, **spread))
    assert (study.front, study.best) == ([0, 1], 1)
    assert choose_trial(study, memory_cap_bytes=19 * MIB).number == 1


def test_a_cap_that_nothing_fits_says_the_least(study: StudyResults) -> None:
    with pytest.raises(
        ExportError,
        match=r"--memory-cap is 1,048,576 bytes \(1\.0 MiB\), but in study simulated the least that any feasible trial "
        r"needs is 11,534,336 bytes",
    ):
        choose_trial(study, memory_cap_bytes=MIB)


def test_where_nothing_is_feasible_nothing_is_exported() -> None:
    study = results_of(trial(0))
    with pytest.raises(ExportError, match="study simulated has no feasible trial, so there is no best policy"):
        choose_trial(study)
    with pytest.raises(ExportError, match="in study simulated none is feasible"):
        choose_trial(study, memory_cap_bytes=MIB)
    with pytest.raises(ExportError, match="feasible trials are none"):
        choose_trial(study, number=9)
