"""What a person sees while a search runs: a live view on a terminal, one line per trial elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from runners.trial import TrialResult
from search_spaces.policy import RecomputePolicy
from tuner.objective import Score
from tuner.predicted_text import beside, measured_peak, measured_step_time, predicted_peak, predicted_step_time
from tuner.results import LOST_STATUSES, StudyResults, TrialRecord

#: Trials of the front that the live view lists.
_MAX_FRONT_ROWS = 8
#: Running trials that the live view lists: all of a few, and of many the ones that have run longest.
_MAX_RUNNING_ROWS = 6
#: Characters of ``31.2 ms`` and ``999.9 MiB``, and with what was predicted: ``31.2 ms (predicted 30.5 +-1.2)``.
_STEP_WIDTH, _PREDICTED_STEP_WIDTH = 7, 30
_PEAK_WIDTH, _PREDICTED_PEAK_WIDTH = 9, 27


def trial_line(trial: TrialRecord) -> str:
    """One line for a finished trial: number, status, throughput, time and peak, proof, policy, why it is no answer.

    What was predicted stands in brackets behind what was measured. A study that predicts keeps room for it in each
    line, so that the columns stay below one another.
    """
    parts = [f"trial {trial.number:>3}", f"{trial.status.value:<9}"]
    if trial.tokens_per_second is not None:
        parts.append(f"{trial.tokens_per_second:>9,.0f} tokens/s")
    elif trial.samples_per_second is not None:
        parts.append(f"{trial.samples_per_second:>9,.4g} samples/s")
    is_predicted = trial.predicted_peak_memory_bytes is not None
    if trial.step_time_s is not None:
        parts.append(f"step {_step_time(trial):<{_PREDICTED_STEP_WIDTH if is_predicted else _STEP_WIDTH}}")
    if trial.peak_memory_bytes is not None:
        parts.append(f"peak {_peak(trial):<{_PREDICTED_PEAK_WIDTH if is_predicted else _PEAK_WIDTH}}")
    if trial.verification is not None:
        parts.append(f"{trial.verification.verdict.value:<8}")
    parts.append(f"{trial.policy_summary}  [{trial.policy_key}]")
    if not trial.feasible:
        parts.append(f"({trial.infeasible_reason})")
    return "  ".join(parts)


class PlainProgress:
    """One line per finished trial, for pipes and log files.

    Args:
        results: The study's results as they stand.
    """

    def __init__(self, console: Console, *, results: Callable[[], StudyResults]) -> None:
        self._console = console
        self._read_results = results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left on the screen to clean up."""

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        """Plain output says nothing until there is a result."""

    def finished(self, result: TrialResult, score: Score) -> None:
        _print_line(self._console, self._read_results(), result.trial_number)


class LiveProgress:
    """Trials done and running, the best so far, the time left and the front as it fills.

    Args:
        results: The study's results as they stand.
        num_trials: Trials that the search may run.
        time_limit_s: Wall time of the study, earlier sessions included.
        elapsed_s: Wall time so far.
    """

    def __init__(
        self,
        console: Console,
        *,
        results: Callable[[], StudyResults],
        num_trials: int,
        time_limit_s: float,
        elapsed_s: Callable[[], float],
    ) -> None:
        self._console = console
        self._read_results = results
        self._results: StudyResults | None = None
        self._num_trials = num_trials
        self._time_limit_s = time_limit_s
        self._elapsed_s = elapsed_s
        self._running: dict[int, tuple[str, float]] = {}
        self._live = Live(get_renderable=self._view, console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        self._results = self._read_results()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        self._running[trial_number] = (policy.summary(), time.monotonic())

    def finished(self, result: TrialResult, score: Score) -> None:
        self._running.pop(result.trial_number, None)
        self._results = self._read_results()
        _print_line(self._live.console, self._results, result.trial_number)

    def _view(self) -> RenderableType:
        lines: list[RenderableType] = [self._bar()]
        # A copy: the view is drawn by a thread of its own while trials come and go.
        lines += _running_lines(list(self._running.items()))
        if self._results is not None:
            lines += _best_and_front(self._results)
        return Group(*lines)

    def _bar(self) -> Table:
        trials = self._results.trials if self._results is not None else []
        done = sum(trial.status not in LOST_STATUSES for trial in trials)
        left_s = max(0, int(self._time_limit_s - self._elapsed_s()))
        row = Table.grid(padding=(0, 1))
        row.add_row(
            Text(f"{done}/{self._num_trials} trials done, {len(self._running)} running"),
            ProgressBar(total=self._num_trials, completed=min(done, self._num_trials), width=30),
            Text(f"at most {left_s // 60} min {left_s % 60:02} s left"),
        )
        return row


def _print_line(console: Console, results: StudyResults, trial_number: int) -> None:
    trial = results.trial(trial_number)
    assert trial is not None, "a trial that has finished is among the results"
    # Width and markup are the terminal's affair; a log keeps the line as it is.
    console.print(Text(trial_line(trial)), soft_wrap=True)


def _running_lines(running: Sequence[tuple[int, tuple[str, float]]]) -> list[Text]:
    """Of trials by their number, what they try and when they began, in that order."""
    now = time.monotonic()
    shown = running if len(running) <= _MAX_RUNNING_ROWS else running[: _MAX_RUNNING_ROWS - 1]
    lines = [Text(f"  running trial {number}: {summary} ({now - since:.0f} s)") for number, (summary, since) in shown]
    others = running[len(shown) :]
    if others:
        (_, (_, oldest)), (_, (_, newest)) = others[0], others[-1]
        lines.append(Text(f"  and {len(others)} more, begun {now - newest:.0f} to {now - oldest:.0f} s ago"))
    return lines


def _best_and_front(results: StudyResults) -> list[RenderableType]:
    best = results.best_trial()
    if best is None:
        return [Text("  best so far: none within the cap yet")]
    table = Table(box=None, padding=(0, 2), title="Pareto front so far", title_justify="left", title_style="dim")
    for title in ("trial", "speed", "step", "peak", "policy"):
        table.add_column(title, justify="left" if title == "policy" else "right", style="dim")
    for trial in results.front_trials()[:_MAX_FRONT_ROWS]:
        table.add_row(str(trial.number), _speed(trial), _step_time(trial), _peak(trial), Text(trial.policy_summary))
    return [Text(f"  best so far: trial {best.number}, {best.policy_summary}, {_speed(best)}", style="bold"), table]


def _step_time(trial: TrialRecord) -> str:
    return beside(measured_step_time(trial), predicted_step_time(trial))


def _peak(trial: TrialRecord) -> str:
    return beside(measured_peak(trial), predicted_peak(trial))


def _speed(trial: TrialRecord) -> str:
    if trial.tokens_per_second is not None:
        return f"{trial.tokens_per_second:,.0f} tokens/s"
    return f"{trial.samples_per_second:,.4g} samples/s"
