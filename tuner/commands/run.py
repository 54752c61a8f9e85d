"""`tune run`: the whole search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import assemble
from tuner.config import ALL_KINDS, SearchConfig
from tuner.console import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_FEASIBLE,
    err_console,
    show,
    show_text,
)
from tuner.each_kind import each_kind
from tuner.interrupts import Interrupts
from tuner.progress import LiveProgress, PlainProgress
from tuner.results import StudyResults
from tuner.search_file.load import load_search_file
from tuner.study.folder import StudyFolder
from tuner.study.session import Outcome, Progress, run_study
from tuner.tables import front_table

if TYPE_CHECKING:
    from runners.ray_runner import RayRunner


def run_command(search_file: Path, *, resume: bool, as_json: bool) -> int:
    """Runs or resumes the study and shows what it found; gives back the exit code.

    Where a study on each kind of accelerator is asked for, all of them, one after another.
    """
    config = load_search_file(search_file)
    if config.runner.accelerator_type == ALL_KINDS:
        return _run_each_kind(load_search_file(search_file.absolute()), resume=resume, as_json=as_json)
    show_outcome = _print_json if as_json else _show
    return _exit_code(_run(config, None, resume=resume, show_outcome=show_outcome))


def _run_each_kind(config: SearchConfig, *, resume: bool, as_json: bool) -> int:
    """The exit code of the first study that did not end well."""
    studies: list[StudyResults] = []
    for of_kind, runner in each_kind(config):
        if not as_json:
            show_text(f"{of_kind.runner.accelerator_type}: study {of_kind.study}")
        began = StudyFolder(assemble.output_dir(of_kind), of_kind.study).exists()
        show_outcome = _print_nothing if as_json else _show
        studies.append(_run(of_kind, runner, resume=resume and began, show_outcome=show_outcome))
        if studies[-1].status == "interrupted":
            break
    if as_json:
        show_text(json.dumps({"studies": [json.loads(study.to_json()) for study in studies]}, indent=1) + "\n")
    elif len(studies) > 1:
        show_text(f"Side by side: tune compare {studies[0].study} {studies[1].study}")
    return next((code for code in map(_exit_code, studies) if code != EXIT_DONE), EXIT_DONE)


def _run(
    config: SearchConfig, runner: RayRunner | None, *, resume: bool, show_outcome: Callable[[Outcome], None]
) -> StudyResults:
    """One study, from the cluster's start to its end; ``runner`` is not open yet, None makes one."""
    interrupts = Interrupts()
    with interrupts.handled():
        runner = runner or assemble.ray_runner(config)
        try:
            outcome = run_study(
                config, runner, resume=resume, make_progress=_progress_maker(config), interrupts=interrupts
            )
            # Before the cluster is closed, which may take a while where something of it died.
            show_outcome(outcome)
        finally:
            # From here to the end, a signal would leave processes of the cluster behind.
            interrupts.refuse()
            runner.close()
    return outcome.results


def _print_json(outcome: Outcome) -> None:
    show_text(outcome.results.to_json())


def _print_nothing(outcome: Outcome) -> None:
    """What all studies found is one document, at their end."""


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
