"""The seam of the export family: from a trial that was measured to the text of a training config."""

from __future__ import annotations

from typing import Protocol

from tuner.results import StudyResults, TrialRecord
from tuner.user_error import UserError


class ExportError(UserError):
    """The trial cannot be exported so; the message says what cannot be said and what can."""


class Exporter(Protocol):
    """Writes policies in one training stack's own words, exactly or not at all."""

    def export(self, study: StudyResults, trial: TrialRecord) -> str:
        """The text of the config.

        Raises:
            ExportError: The stack cannot express the policy.
        """
