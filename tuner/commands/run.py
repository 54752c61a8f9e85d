"""`tune run`: the whole search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuner import assemble
from tuner.config import SearchConfig
from tuner.config_file import load_search_file
from tuner.console import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_FEASIBLE,
    err_console,
    show,
    show_text,
)
from tuner.interrupts import Interrupts
from tuner.progress import LiveProgress, PlainProgress
from tuner.results import StudyResults
from tuner.study_session import Outcome, Progress, run_study
from tuner.tables import front_table


def run_command(search_file: Path, *, resume: bool, as_json: bool) -> int:
    """Runs or resumes the study and shows what it found; gives back the exit code."""
    config = load_search_file(search_file)
    interrupts = Interrupts()
    with interrupts.handled():
        runner = assemble.ray_runner(config)
        try:
            outcome = run_study(
                config, runner, resume=resume, make_progress=_progress_maker(config), interrupts=interrupts
            )
            # Before the cluster is closed, which may take a while where something of it died.
            if as_json:
                show_text(outcome.results.to_json())
            else:
                _show(outcome)
        finally:
            # From here to the end, a signal would leave processes of the cluster behind.
            interrupts.refuse()
            runner.close()
    return _exit_code(outcome.results)


def _progress_maker(config: SearchConfig) -> Callable[[Callable[[], StudyResults], Callable[[], float]], Progress]:
    def make(results: Callable[[], StudyResults], elapsed_s: Callable[[], float]) -> Progress:
        if not err_console.is_terminal:
            return PlainProgress(err_console, results=results)
        return LiveProgress(
            err_console,
            results=results,
            num_trials=config.search.num_trials,
            time_limit_s=config.search.time_limit_s,
            elapsed_s=elapsed_s,
        )

    return make


def _show(outcome: Outcome) -> None:
    results, folder = outcome.results, outcome.folder
    show(front_table(results, outcome.summary))
    for sentence in outcome.summary.sentences:
        show_text(sentence)
    show_text(f"Stopped: {results.stop_reason}.")
    if results.status == "interrupted":
        show_text("What was measured is kept; continue with --resume.")
    files = [folder.policy_file, folder.report_file, folder.results_file]
    show_text(f"Files: {', '.join(str(file) for file in files if file.exists())}")


def _exit_code(results: StudyResults) -> int:
    if results.status == "interrupted":
        return EXIT_INTERRUPTED
    if results.status != "finished":
        return EXIT_FAILED
    return EXIT_DONE if results.best is not None else EXIT_NOTHING_FEASIBLE
