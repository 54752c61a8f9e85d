"""Looks at a model without data, in a process of its own on this machine: no Ray, and no device needed."""

from __future__ import annotations

import json
import logging

from runners.base import RunnerError, WorkloadError
from runners.trial import DryRunResult, DryRunSpec, InspectionSpec, ModelInspection
from runners.worker_agent import WorkerAgent

logger = logging.getLogger(__name__)

#: The current folder must not shadow modules of the worker; the rest keeps it quiet and its waiting threads asleep.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false"}


class LocalInspector:
    """Answers what a `TrialRunner` answers before any trial. The process starts with the first question."""

    def __init__(self) -> None:
        self._agent = WorkerAgent(_ENVIRONMENT, process_per_trial=False)

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        """As `TrialRunner.inspect`."""
        answer = json.loads(self._agent.inspect(spec.model_dump_json(), spec.timeout_s))
        if "workload_error" in answer:
            raise WorkloadError(answer["workload_error"])
        if "runner_error" in answer:
            logger.debug("worker output:\n%s", answer["detail"])
            last_line = (answer["detail"].strip().splitlines() or [""])[-1]
            raise RunnerError(f"{answer['runner_error']}; its last output was: {last_line}")
        return ModelInspection.model_validate(answer["inspection"])

    def dry_run(self, spec: DryRunSpec) -> DryRunResult:
        """As `TrialRunner.dry_run`."""
        return DryRunResult.model_validate_json(self._agent.dry_run(spec.model_dump_json()))

    def close(self) -> None:
        """Ends the process; may be called twice."""
        self._agent.stop()
