"""The seam between the search and whatever runs trials: a cluster, or a recorded table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.step_timeline.records import StepTimeline, StepTimelineSpec
from runners.trial import (
    DryRunResult,
    DryRunSpec,
    InspectionSpec,
    ModelInspection,
    PlayoffResult,
    PlayoffSpec,
    TrialResult,
    TrialSpec,
)


class RunnerError(Exception):
    """The place where trials run cannot do what was asked; the message is one line for the user."""


class WorkloadError(RunnerError):
    """The user's model, batch or placement cannot be used as named; the message is one line for the user."""


class TrialRunner(Protocol):
    """Runs trials, several at a time, and hands back one result for each that was submitted."""

    def describe(self) -> str:
        """Where trials run and on what, in one line."""

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        """Builds the model once and says what it is made of.

        Raises:
            WorkloadError: The model or batch cannot be built, or a named path does not exist.
            RunnerError: Nothing can run here, for example because no node offers the resources.
        """

    def dry_run(self, spec: DryRunSpec) -> DryRunResult:
        """Predicts memory without running a step; nothing else may be in flight. A failure is a result, too."""

    def capacity(self) -> int:
        """Trials that may be in flight at once; at least 1."""

    def submit(self, spec: TrialSpec) -> None:
        """Starts a trial; its number must not be in flight already."""

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        """Results that arrived, waiting up to ``timeout_s`` for the first; empty where none did.

        Never raises for a trial that went wrong: that is a result with a status.
        """

    def playoff(self, spec: PlayoffSpec) -> PlayoffResult:
        """Times a few policies in turn in one process; nothing else may be in flight. A failure is a result, too."""

    def diagnosis(self, spec: DiagnosisSpec) -> Diagnosis:
        """Measures what memory and time of a plain step are made of; nothing else may be in flight."""

    def step_timeline(self, spec: StepTimelineSpec) -> StepTimeline:
        """Follows what one step keeps for backward; nothing else may be in flight."""

    def cancel(self) -> Sequence[TrialResult]:
        """Stops every trial in flight and answers each with status CANCELLED."""

    def close(self) -> None:
        """Gives back everything this runner started; may be called twice."""
