"""Looks at a model without data, in a process of its own on this machine: no Ray, and no device needed."""

from __future__ import annotations

from runners.trial import DryRunResult, DryRunSpec, InspectionSpec, ModelInspection
from runners.worker_agent import WorkerAgent, read_inspection

#: The current folder must not shadow modules of the worker; the rest keeps it quiet and its waiting threads asleep.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false"}


class LocalInspector:
    """Answers what a `TrialRunner` answers before any trial. The process starts with the first question."""

    def __init__(self) -> None:
        self._agent = WorkerAgent(_ENVIRONMENT, process_per_trial=False)

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        """As `TrialRunner.inspect`."""
        return read_inspection(self._agent.inspect(spec.model_dump_json(), spec.timeout_s))

    def dry_run(self, spec: DryRunSpec) -> DryRunResult:
        """As `TrialRunner.dry_run`."""
        return DryRunResult.model_validate_json(self._agent.ask("dry_run", spec.model_dump_json(), spec.timeout_s))

    def close(self) -> None:
        """Ends the process; may be called twice."""
        self._agent.stop()
