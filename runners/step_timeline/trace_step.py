"""Traces one step under a policy: when each kept tensor is born and last used."""

from __future__ import annotations

from runners.step_timeline.records import StepTimeline, StepTimelineSpec
from runners.worker_session import WorkerSession


def trace_step(spec: StepTimelineSpec, session: WorkerSession) -> StepTimeline:
    """Runs one step and follows what it keeps."""
    raise NotImplementedError
