"""What a person sees while a search runs: a live view on a terminal, one line per trial elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from runners.trial import TrialResult
from search_spaces.policy import RecomputePolicy
from tuner.memory_size import format_bytes
from tuner.objective import Score
from tuner.results import LOST_STATUSES, StudyResults, TrialRecord

#: Trials of the front that the live view lists.
_MAX_FRONT_ROWS = 8


def trial_line(result: TrialResult, score: Score) -> str:
    """One line for a finished trial: number, status, throughput, peak, proof, policy, and why it is no answer."""
    parts = [f"trial {result.trial_number:>3}", f"{result.status.value:<9}"]
    if result.tokens_per_second is not None:
        parts.append(f"{result.tokens_per_second:>9,.0f} tokens/s")
    elif result.samples_per_second is not None:
        parts.append(f"{result.samples_per_second:>9,.4g} samples/s")
    if result.peak_memory_bytes is not None:
        parts.append(f"{format_bytes(result.peak_memory_bytes):>10}")
    if result.verification is not None:
        parts.append(f"{result.verification.verdict.value:<8}")
    parts.append(f"{result.policy.summary()}  [{result.policy.key}]")
    if not score.feasible:
        parts.append(f"({score.infeasible_reason})")
    return "  ".join(parts)


class PlainProgress:
    """One line per finished trial, for pipes and log files."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left on the screen to clean up."""

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        """Plain output says nothing until there is a result."""

    def finished(self, result: TrialResult, score: Score) -> None:
        # Width and markup are the terminal's affair; a log keeps the line as it is.
        self._console.print(Text(trial_line(result, score)), soft_wrap=True)


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
        self._live.console.print(Text(trial_line(result, score)), soft_wrap=True)

    def _view(self) -> RenderableType:
        lines: list[RenderableType] = [self._bar()]
        now = time.monotonic()
        # A copy: the view is drawn by a thread of its own while trials come and go.
        for number, (summary, since) in list(self._running.items()):
            lines.append(Text(f"  running trial {number}: {summary} ({now - since:.0f} s)"))
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


def _best_and_front(results: StudyResults) -> list[RenderableType]:
    best = results.best_trial()
    if best is None:
        return [Text("  best so far: none within the cap yet")]
    table = Table(box=None, padding=(0, 2), title="Pareto front so far", title_justify="left", title_style="dim")
    for title in ("trial", "speed", "peak", "policy"):
        table.add_column(title, justify="left" if title == "policy" else "right", style="dim")
    for trial in results.front_trials()[:_MAX_FRONT_ROWS]:
        table.add_row(
            str(trial.number), _speed(trial), format_bytes(trial.peak_memory_bytes or 0), Text(trial.policy_summary)
        )
    return [Text(f"  best so far: trial {best.number}, {best.policy_summary}, {_speed(best)}", style="bold"), table]


def _speed(trial: TrialRecord) -> str:
    if trial.tokens_per_second is not None:
        return f"{trial.tokens_per_second:,.0f} tokens/s"
    return f"{trial.samples_per_second:,.4g} samples/s"
