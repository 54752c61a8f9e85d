from __future__ import annotations

from rich.console import Console, RenderableType
from simulation import MIB, failure, results_of, trial

from runners.trial import Prediction, TrialResult, TrialStatus
from tuner.results import StudyResults
from tuner.speed_ratio import Playoff
from tuner.summary import summarize
from tuner.tables import front_table, trials_table

Row = list[str]


def rows(table: RenderableType, *, width: int = 160) -> list[Row]:
    """The cells as a person reads them, head first."""
    console = Console(width=width, color_system=None, record=True, quiet=False)
    with console.capture() as capture:
        console.print(table)
    lines = [line for line in capture.get().splitlines() if line.startswith(("│", "┃"))]
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines]


def front(results: StudyResults) -> list[Row]:
    return rows(front_table(results, summarize(results)))


def test_baseline_everything_plain_and_the_front_stand_in_one_table() -> None:
    results = results_of(trial(0), trial(1, "block"), trial(2, "none", 1), trial(3, "mlp"), trial(4, "block", 1))
    assert front(results) == [
        ["trial", "what", "policy", "tokens/s", "spread", "x baseline", "peak", "of cap", "proof"],
        ["0", "baseline", "none @2x1", "32", "+-0.0%", "1.00x", "26.0 MiB", "130%", "MATCH"],
        ["1", "every block, front", "block @2x1", "25", "+-0.0%", "0.77x +-0.00", "12.0 MiB", "60%", "MATCH"],
        ["2", "plain, fits", "none @1x2", "21", "+-0.0%", "0.67x +-0.00", "18.0 MiB", "90%", "MATCH"],
        ["3", "BEST", "mlp @2x1", "29", "+-0.0%", "0.89x +-0.00", "18.0 MiB", "90%", "MATCH"],
        ["4", "front", "block @1x2", "18", "+-0.0%", "0.56x +-0.00", "11.0 MiB", "55%", "MATCH"],
    ]


def test_a_trial_with_several_roles_has_one_row() -> None:
    results = results_of(trial(0), cap_bytes=30 * MIB)
    assert [row[:2] for row in front(results)[1:]] == [["0", "baseline, plain, fits, BEST"]]


def test_a_winner_by_the_playoff_alone_stands_on_the_front() -> None:
    playoff = Playoff(trials=(1, 2), step_times_s=((1.0,) * 5, (2.0,) * 5))
    results = results_of(trial(0), trial(1, "mlp", 1, relative_speed=0.5), trial(2, "block", 1), playoff=playoff)
    assert (results.front, results.best) == ([1, 2], 1)
    assert [row[0] for row in front(results)[1:] if "BEST" in row[1]] == ["1"]


def test_a_baseline_out_of_memory_has_its_status_where_the_peak_would_be() -> None:
    results = results_of(failure(0, TrialStatus.OUT_OF_MEMORY, "no room"), trial(1, "block"))
    assert front(results)[1] == ["0", "baseline", "none @2x1", "", "", "", "OUT_OF_MEMORY", "", ""]


def test_samples_are_counted_where_there_are_no_tokens() -> None:
    def without_tokens(number: int, action: str) -> TrialResult:
        return trial(number, action, tokens_per_second=None)

    head, *body = front(results_of(without_tokens(0, "none"), without_tokens(1, "block")))
    assert head[3] == "samples/s"
    assert body[1][3] == "1.538"


def test_an_empty_study_has_an_empty_table() -> None:
    assert len(front(results_of())) == 1


def test_every_trial_with_what_became_of_it() -> None:
    results = results_of(
        trial(0), trial(1, "block"), failure(2, TrialStatus.FAILED, "h.0: shapes [2, 3] differ", "mlp")
    )
    assert rows(trials_table(results))[1:] == [
        ["0", "COMPLETED", "none @2x1", "32", "1.00 s", "26.0 MiB", "MATCH", "its peak is 30.0% over the cap"],
        ["1", "COMPLETED", "block @2x1", "25", "1.30 s", "12.0 MiB", "MATCH", ""],
        ["2", "FAILED", "mlp @2x1", "", "", "", "", "failed: h.0: shapes [2, 3] differ"],
    ]


def test_a_narrow_terminal_still_shows_every_trial() -> None:
    results = results_of(trial(0), trial(1, "block"), trial(2, "none", 1))
    table = rows(front_table(results, summarize(results)), width=80)
    assert [row[0] for row in table if row[0].isdigit()] == ["0", "1", "2"]


def test_predictions_stand_beside_what_was_measured() -> None:
    prediction = Prediction(peak_memory_bytes=25 * MIB, time=0.6, time_deviation=0.04)
    lost = failure(2, TrialStatus.FAILED, "shapes differ", "mlp").model_copy(update={"prediction": prediction})
    results = results_of(trial(0, prediction=prediction), trial(1, "block"), lost)
    head, first, second, third = rows(trials_table(results))
    assert head[4:8] == ["step", "predicted", "peak", "predicted"]
    assert first[4:8] == ["1.00 s", "0.90 +-0.06", "26.0 MiB", "25.0"]
    assert second[4:8] == ["1.30 s", "", "12.0 MiB", ""]
    assert third[4:8] == ["", "", "", "25.0 MiB"]
