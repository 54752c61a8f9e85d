"""`tune compare`: two studies side by side, from their results.json."""

from __future__ import annotations

from pathlib import Path

from tuner.comparison.compare_studies import compare_studies
from tuner.comparison.tables import comparison_tables
from tuner.console import EXIT_DONE, show, show_text
from tuner.studies import find_study


def compare_command(study_a: str, study_b: str, *, output_dir: Path, uri: str | None, as_json: bool) -> int:
    """Prints the comparison; gives back the exit code."""
    a, b = (find_study(study, output_dir=output_dir, uri=uri) for study in (study_a, study_b))
    comparison = compare_studies(a, b)
    if as_json:
        show_text(comparison.model_dump_json(indent=1) + "\n")
        return EXIT_DONE
    if not comparison.same:
        for table in comparison_tables(comparison):
            show(table)
        for caution in comparison.cautions:
            show_text(f"Warning: {caution}")
    for sentence in comparison.summary:
        show_text(sentence)
    return EXIT_DONE
