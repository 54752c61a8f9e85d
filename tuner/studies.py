"""Finds a finished or running study by its name or folder."""

from __future__ import annotations

import difflib
import os
import tempfile
from pathlib import Path

from search_spaces.yaml_words import quoted
from tuner.results import StudyResults
from tuner.results_file import ResultsError, read_results

RESULTS_FILE = "results.json"


def find_study(
    study: str, *, output_dir: Path, uri: str | None = None, named_by: str = "STUDY"
) -> tuple[Path, StudyResults]:
    """The folder and the results of a study.

    Args:
        study: Its name below ``output_dir``, its folder, or its results.json.
        uri: MLflow store that has the study, where it ran on another machine; it is then found by its name alone.
        named_by: The argument or option in which the user named it.

    Raises:
        ResultsError: There is no such study; the message lists those that exist.
        TrackingError: The store is in trouble or has no such study.
    """
    if uri is not None:
        return output_dir / study, _tracked(study, output_dir, uri)
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
        f"{named_by} is {quoted(study)}, which is neither a study in {output_dir} nor a folder with {RESULTS_FILE} "
        f"(studies there: {have}){hint}; name one, or its folder, or another --output-dir"
    )


def _tracked(study: str, output_dir: Path, uri: str) -> StudyResults:
    # MLflow takes two seconds to import.
    from mlflow_config.settings import tracking_settings
    from mlflow_config.study_files import read_study_file

    try:
        settings = tracking_settings(output_dir=output_dir, experiment="studies", uri=uri)
    except ValueError as error:
        raise ResultsError(str(error).replace("tracking.uri", "--uri")) from error
    text = read_study_file(settings, study, RESULTS_FILE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / RESULTS_FILE
        file.write_text(text)
        return read_results(file)


def _studies_in(output_dir: Path) -> list[str]:
    """Names of its studies; none where there can be no such folder."""
    try:
        return sorted(path.parent.name for path in output_dir.glob(f"*/{RESULTS_FILE}"))
    except OSError:
        return []
