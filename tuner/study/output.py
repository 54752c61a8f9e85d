"""The files that a study leaves in its folder, while it runs and at its end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from mlflow_config import names
from runners.trial import TrialResult
from tuner.export.policy import policy_yaml
from tuner.report import front_html, report_html
from tuner.results import StudyResults
from tuner.study.folder import StudyFolder, StudyFolderError
from tuner.study.timelines import StudyTimelines
from tuner.summary import StudySummary

logger = logging.getLogger(__name__)

#: Share of the time that writing results.json may take while trials come in quickly; each writing grows with them.
_WRITING_SHARE = 0.05


class StudyOutput:
    """Writes one study's folder.

    Args:
        results: Gives the study as it stands.
    """

    def __init__(self, folder: StudyFolder, results: Callable[[], StudyResults]) -> None:
        self._folder = folder
        self._results = results
        self._next_writing_at = 0.0
        self._is_in_trouble = False

    def write_results(self) -> None:
        """results.json as it should stand now.

        Raises:
            StudyFolderError: It cannot be written.
        """
        start = time.monotonic()
        self._folder.write(self._folder.results_file, self._results().to_json())
        end = time.monotonic()
        self._next_writing_at = end + (end - start) / _WRITING_SHARE

    def trial_ended(self, result: TrialResult) -> None:
        """Adds to the log and, unless that was done a moment ago, writes results.json; trouble is said once."""
        try:
            if result.detail is not None:
                self._folder.append_log(f"trial {result.trial_number}: {result.reason}\n{result.detail}\n")
            if time.monotonic() >= self._next_writing_at:
                self.write_results()
            self._is_in_trouble = False
        except StudyFolderError as error:
            if not self._is_in_trouble:
                logger.warning("%s; the search goes on and writes again later", error)
            self._is_in_trouble = True

    def write_all(self, texts: dict[str, str], timelines: StudyTimelines) -> dict[str, str]:
        """Every file of a study that has ended.

        Args:
            texts: As `final_texts` gives them.

        Returns:
            The texts of the timelines.

        Raises:
            StudyFolderError: One of them cannot be written.
        """
        self.write_results()
        self._folder.write(self._folder.report_file, texts[names.REPORT_FILE])
        if names.POLICY_FILE in texts:
            self._folder.write(self._folder.policy_file, texts[names.POLICY_FILE])
        else:
            self._folder.remove(self._folder.policy_file)
        return timelines.write(self._folder)


def final_texts(results: StudyResults, summary: StudySummary) -> dict[str, str]:
    """What a study that has ended leaves, by the name of the file in MLflow."""
    texts = {
        names.FRONT_FILE: front_html(results),
        names.REPORT_FILE: report_html(results, summary),
        names.RESULTS_FILE: results.to_json(),
    }
    best = results.best_trial()
    if best is not None:
        texts[names.POLICY_FILE] = policy_yaml(results, best)
    if results.unit_costs:
        costs = [cost.model_dump(mode="json") for cost in results.unit_costs]
        texts[names.UNIT_COSTS_FILE] = json.dumps(costs, indent=1)
    return texts
