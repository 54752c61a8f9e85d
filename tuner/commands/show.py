"""`tune show`: a study's front, from its results.json."""

from __future__ import annotations

from pathlib import Path

from tuner.console import EXIT_DONE, show, show_text
from tuner.studies import find_study
from tuner.summary import summarize
from tuner.tables import front_table, trials_table


def show_command(study: str, *, output_dir: Path, uri: str | None, all_trials: bool, as_json: bool) -> int:
    """Prints the study; gives back the exit code."""
    _, results = find_study(study, output_dir=output_dir, uri=uri)
    if as_json:
        show_text(results.to_json())
        return EXIT_DONE
    summary = summarize(results)
    show(trials_table(results) if all_trials else front_table(results, summary))
    for sentence in summary.sentences:
        show_text(sentence)
    show_text(f"Status: {results.status}{f', {results.stop_reason}' if results.stop_reason else ''}.")
    return EXIT_DONE
