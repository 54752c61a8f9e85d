"""Finds a finished or running study by its name or folder."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from search_spaces.yaml_words import quoted
from tuner.results import ResultsError, StudyResults, read_results

RESULTS_FILE = "results.json"


def find_study(study: str, *, output_dir: Path) -> tuple[Path, StudyResults]:
    """The folder and the results of a study.

    Args:
        study: Its name below ``output_dir``, its folder, or its results.json.

    Raises:
        ResultsError: There is no such study; the message lists those that exist.
    """
    named = Path(study)
    for folder in (named.parent if named.name == RESULTS_FILE else named, output_dir / study):
        # Whatever has the name: that it is a folder or a broken link is for the reader to say.
        if os.path.lexists(folder / RESULTS_FILE):
            return folder, read_results(folder / RESULTS_FILE)
    known = _studies_in(output_dir)
    near = difflib.get_close_matches(study, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    have = ", ".join(known) if known else "none"
    raise ResultsError(
        f"STUDY is {quoted(study)}, which is neither a study in {output_dir} nor a folder with {RESULTS_FILE} "
        f"(studies there: {have}){hint}; name one, or its folder, or another --output-dir"
    )


def _studies_in(output_dir: Path) -> list[str]:
    """Names of its studies; none where there can be no such folder."""
    try:
        return sorted(path.parent.name for path in output_dir.glob(f"*/{RESULTS_FILE}"))
    except OSError:
        return []
