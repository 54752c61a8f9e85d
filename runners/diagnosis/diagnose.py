"""Measures what memory and time of a plain step are made of."""

from __future__ import annotations

from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.worker_session import WorkerSession


def diagnose(spec: DiagnosisSpec, session: WorkerSession) -> Diagnosis:
    """Runs plain steps and tells apart who holds what."""
    raise NotImplementedError
