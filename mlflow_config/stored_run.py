"""One run as an MLflow store has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Status of a run that has not ended.
RUNNING = "RUNNING"


@dataclass(frozen=True)
class StoredRun:
    """``start_time_ms`` counts from the Unix epoch."""

    run_id: str
    artifact_uri: str
    experiment_id: str
    status: str
    start_time_ms: int
    param_names: frozenset[str]
    tags: Mapping[str, str]
