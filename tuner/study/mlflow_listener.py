"""When a study tells MLflow: as trials start and end, in a thread of its own."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

from runners.trial import TrialResult
from search_spaces.policy import RecomputePolicy
from tuner.background_job import BackgroundJob
from tuner.objective import Score
from tuner.recording import BegunTrial, StudyRecording
from tuner.results import StudyResults

logger = logging.getLogger(__name__)

#: Seconds that the end of a study waits for the store without a word.
_SILENT_WAIT_S = 2.0


class MlflowListener:
    """Shows each trial in MLflow as it starts and ends; the search waits for no store, however slow.

    Where trials come faster than the store takes them, all that came meanwhile is written next; nothing is left out.

    Args:
        results: Gives the study's results as they stand; asked in the caller's thread after a trial has ended. What it
            gives is not changed later.
    """

    def __init__(self, recording: StudyRecording, results: Callable[[], StudyResults]) -> None:
        self._recording = recording
        self._results = results
        self._begun: deque[BegunTrial] = deque()
        self._newest: StudyResults | None = None
        self._job = BackgroundJob(self._record_news, name="mlflow")

    def open(self) -> None:
        """Finds or begins the study's own run, and ends the runs that a dead driver left; waits until that is done."""
        self._recording.open()

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        self._begun.append(BegunTrial(trial_number, f"{trial_number}: {policy.summary()}", time.time()))
        self._job.request()

    def finished(self, result: TrialResult, score: Score) -> None:
        if result.detail is not None:
            self._recording.add_detail(result.trial_number, result.detail)
        self._newest = self._results()
        self._job.request()

    def finish(self, *, texts: Mapping[str, str], markdown: str) -> None:
        """Completes the study's own run: its files, its table and the sentence on top. To be told last."""
        if not self._job.wait(_SILENT_WAIT_S):
            logger.info("MLflow: the last trials are still being recorded")
        self._job.stop()
        self._recording.complete(self._results(), texts=texts, markdown=markdown)

    def _record_news(self) -> None:
        # Results first: whatever has ended by now has begun before.
        newest = self._newest
        self._recording.record(self._begun, newest)
