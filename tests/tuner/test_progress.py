from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console
from simulation import MIB, failure, policy, results_of, trial

from runners.trial import Prediction, TrialResult, TrialStatus, Verdict, Verification
from tuner.objective import Objective, Score
from tuner.progress import LiveProgress, PlainProgress, trial_line
from tuner.results import StudyResults

OBJECTIVE = Objective(memory_cap_bytes=20 * MIB)
PREDICTION = Prediction(peak_memory_bytes=12 * MIB + 60_000, time=0.84, time_deviation=0.02)


def line(result: TrialResult) -> str:
    (record,) = results_of(result).trials
    return trial_line(record)


@pytest.mark.parametrize(
    "result, text",
    [
        (
            trial(1, "block"),
            "trial   1  COMPLETED         25 tokens/s  step 1.30 s   peak 12.0 MiB   MATCH     block @2x1  "
            f"[{policy('block').key}]",
        ),
        (
            trial(12, tokens_per_second=None),
            "trial  12  COMPLETED          2 samples/s  step 1.00 s   peak 26.0 MiB   MATCH     none @2x1  "
            f"[{policy().key}]  (its peak is 30.0% over the cap)",
        ),
        (
            failure(3, TrialStatus.OUT_OF_MEMORY, "no room for [2, 3]", "mlp"),
            f"trial   3  OUT_OF_MEMORY  mlp @2x1  [{policy('mlp').key}]  (out of memory: no room for [2, 3])",
        ),
        (
            trial(4, "mlp", verification=Verification(verdict=Verdict.MISMATCH, reason="grad differs")),
            "trial   4  COMPLETED         29 tokens/s  step 1.12 s   peak 18.0 MiB   MISMATCH  mlp @2x1  "
            f"[{policy('mlp').key}]  (it trains another model: grad differs)",
        ),
    ],
    ids=["feasible", "over the cap", "out of memory", "mismatch"],
)
def test_one_line_says_what_became_of_a_trial(result: TrialResult, text: str) -> None:
    assert line(result) == text


def test_what_was_predicted_stands_behind_what_was_measured() -> None:
    assert line(trial(1, "block", prediction=PREDICTION)) == (
        "trial   1  COMPLETED         25 tokens/s  step 1.30 s (predicted 1.26 +-0.03)  "
        f"peak 12.0 MiB (predicted 12.1)    MATCH     block @2x1  [{policy('block').key}]"
    )


def test_lines_of_a_study_that_predicts_stand_below_one_another() -> None:
    """The time of the first trials is not predicted yet."""
    only_peak = Prediction(peak_memory_bytes=26 * MIB)
    lines = [line(trial(0, prediction=only_peak)), line(trial(1, "block", prediction=PREDICTION))]
    for column in ("peak ", "MATCH "):
        assert len({text.index(column) for text in lines}) == 1, column
    assert "step 1.00 s " in lines[0]
    assert lines[0].count("predicted") == 1


def test_nothing_is_said_of_predictions_where_there_are_none() -> None:
    assert "predicted" not in line(trial(0))


def test_plain_output_is_one_line_per_trial_however_long() -> None:
    output = io.StringIO()
    long = failure(0, TrialStatus.FAILED, "h.0: [red]shapes[/red] differ, " * 20)
    with PlainProgress(Console(file=output, width=40), results=lambda: results_of(long)) as progress:
        progress.started(0, long.policy)
        progress.finished(long, OBJECTIVE.score(long))
    assert output.getvalue() == line(long) + "\n"


class Shown:
    """A live view of a growing study, drawn without waiting for the clock."""

    def __init__(self, *before: TrialResult, **options: Any) -> None:
        self.trials = list(before)
        self.console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
        arguments = {"num_trials": 10, "time_limit_s": 600.0, "elapsed_s": lambda: 61.5, "results": self.results}
        self.progress = LiveProgress(self.console, **{**arguments, **options})

    def results(self) -> StudyResults:
        return results_of(*self.trials)

    def finish(self, result: TrialResult) -> None:
        self.trials.append(result)
        self.progress.finished(result, OBJECTIVE.score(result))

    def lines(self) -> list[str]:
        console = Console(width=120, color_system=None)
        with console.capture() as capture:
            console.print(self.progress._live.get_renderable())
        return [line.rstrip() for line in capture.get().splitlines()]


def test_the_view_counts_what_is_done_and_running_and_the_time_left() -> None:
    shown = Shown()
    with shown.progress as progress:
        progress.started(0, policy())
        progress.started(1, policy("block"))
        head, first, second, *rest = shown.lines()
        assert head.startswith("0/10 trials done, 2 running")
        assert head.endswith("at most 8 min 58 s left")
        assert (first, second) == ("  running trial 0: none @2x1 (0 s)", "  running trial 1: block @2x1 (0 s)")
        assert rest == ["  best so far: none within the cap yet"]


def test_of_many_running_trials_the_longest_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.progress.time.monotonic", lambda: now[0])
    shown = Shown()
    with shown.progress as progress:
        for number in range(6):
            progress.started(number, policy())
        assert [line.split(":")[0] for line in shown.lines()[1:-1]] == [f"  running trial {n}" for n in range(6)]
        for number in range(6, 1000):
            now[0] = number / 10
            progress.started(number, policy("block"))
        shown.finish(trial(2))
        head, *lines = shown.lines()
    assert head.startswith("1/10 trials done, 999 running")
    assert [line.split(" (")[0] for line in lines[:5]] == [
        *(f"  running trial {number}: none @2x1" for number in (0, 1, 3, 4, 5))
    ]
    assert lines[5] == "  and 994 more, begun 0 to 99 s ago"
    assert lines[6].startswith("  best so far: ")


def test_the_view_shows_the_best_and_the_front() -> None:
    shown = Shown()
    with shown.progress as progress:
        for number, action in enumerate(("none", "block", "mlp")):
            progress.started(number, policy(action))
            shown.finish(trial(number, action))
        lines = shown.lines()
    assert lines[0].startswith("3/10 trials done, 0 running")
    assert lines[1] == "  best so far: trial 2, mlp @2x1, 29 tokens/s"
    assert lines[2] == "Pareto front so far"
    assert lines[3].split() == ["trial", "speed", "step", "peak", "policy"]
    assert [row.split()[0] for row in lines[4:]] == ["2", "1"]


def test_the_front_shows_what_was_predicted_as_well() -> None:
    shown = Shown()
    with shown.progress:
        shown.finish(trial(0, "block", prediction=PREDICTION))
        row = shown.lines()[-1]
    assert " 1.30 s (predicted 1.26 +-0.03) " in row
    assert " 12.0 MiB (predicted 12.1) " in row


def test_a_resumed_study_begins_where_it_was() -> None:
    shown = Shown(trial(0), trial(1, "block"), failure(2, TrialStatus.CANCELLED, "interrupted", "mlp"))
    with shown.progress:
        lines = shown.lines()
    assert lines[0].startswith("2/10 trials done, 0 running"), "a cancelled trial is not done"
    assert "trial 1" in lines[1]


def test_time_that_has_run_out_is_not_negative() -> None:
    shown = Shown(elapsed_s=lambda: 1000.0)
    with shown.progress:
        assert shown.lines()[0].endswith("at most 0 min 00 s left")


def test_finished_trials_stay_above_the_view() -> None:
    shown = Shown()
    with shown.progress:
        shown.finish(trial(0))
    assert line(trial(0)) in shown.console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO


@pytest.fixture
def _threads_that_take_turns_quickly() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_threads_that_take_turns_quickly")
def test_the_view_can_be_drawn_while_trials_come_and_go() -> None:
    lost = [failure(number, TrialStatus.CANCELLED, "no") for number in range(50)]
    results = results_of(*lost)
    shown = Shown(results=lambda: results)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for result in lost:
                shown.progress.started(result.trial_number, policy())
            for result in lost:
                shown.progress.finished(result, Score(None, None, True, "no"))

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(100):
            shown.lines()
    finally:
        stop.set()
        thread.join()


def test_an_error_gives_the_terminal_back() -> None:
    shown = Shown()

    def fail(action: Callable[[], object]) -> None:
        with shown.progress:
            action()

    with pytest.raises(ZeroDivisionError, match="division"):
        fail(lambda: 1 / 0)
    written = shown.console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l"), "the cursor is shown again"
