"""Stands on a node and keeps one worker process: asks it, times it, replaces it when it is no longer clean."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from runners.base import RunnerError, WorkloadError
from runners.parallel.records import RankSpec, WaitingPlace
from runners.proof.limits import ProofLimits
from runners.record import Record
from runners.stack_place import read_place
from runners.trial import (
    ModelInspection,
    QuestionKind,
    TrialResult,
    TrialSpec,
    TrialStatus,
    failed_trial,
)
from runners.worker_process import WorkerDiedError, WorkerProcess, WorkerTimeoutError

logger = logging.getLogger(__name__)


class RankOutcome(Record):
    """What one rank's part of a trial came to.

    Attributes:
        has_died: Its process ended without an answer.
        is_warm: Its process can run another trial, as the same rank.
        tighter_limits: Those with which the trial may begin anew, where its proof ran out of memory; None otherwise.
    """

    result: TrialResult
    has_died: bool
    is_warm: bool
    tighter_limits: ProofLimits | None = None


class WorkerAgent:
    """Loads no torch itself, so it outlives whatever a trial does to its process.

    Args:
        environment: Variables for the worker process, for example its thread count.
        process_per_trial: True starts a new process for each trial, clean or not.
        base_dir: Where the user's files are on this node; None leaves that to the requests.
    """

    def __init__(self, environment: Mapping[str, str], *, process_per_trial: bool, base_dir: str | None = None) -> None:
        self._base_dir = base_dir
        self._environment = dict(environment)
        self._process_per_trial = process_per_trial
        self._rank: RankSpec | None = None
        self._process: WorkerProcess | None = None
        # What a model's code keeps from a run without data (tables in a module, say) would spoil one with data.
        self._process_without_data: WorkerProcess | None = None

    def pid(self) -> int:
        return os.getpid()

    def join(self, rank_json: str) -> None:
        """From now on the worker is one rank of several; one that was another rank before is ended."""
        if self._rank is not None:
            self.end_worker()
        self._rank = RankSpec.model_validate_json(rank_json)

    def stack(self) -> str:
        """What the worker says of where it stands, as `WaitingPlace` in JSON; may be called while a trial runs."""
        process = self._process
        return (WaitingPlace() if process is None else read_place(process.stack())).model_dump_json()

    def inspect(self, spec_json: str, timeout_s: float | None) -> str:
        """Answers ``{"inspection": ...}``, ``{"workload_error": line}`` or ``{"runner_error": line}`` as JSON."""
        request = {"kind": "inspect", "spec": json.loads(spec_json)}
        worker = self._worker_without_data() if request["spec"].get("on_fake_tensors") else self._worker()
        try:
            answer = worker.ask(request, timeout_s=timeout_s)
        except WorkerTimeoutError:
            answer = {
                "workload_error": f"the model could not be built and traced within the {timeout_s:g} s of "
                "runner.trial_timeout; raise that, or let the factory load less"
            }
        except WorkerDiedError as error:
            answer = {"runner_error": f"{error} while the model was built or run", "detail": error.detail}
        if answer.get("unclean_reason") is not None:
            self.end_worker()
        return json.dumps(answer)

    def run(self, spec_json: str) -> str:
        """Runs one trial and answers with its result as JSON; never raises for what a trial does."""
        spec = TrialSpec.model_validate_json(spec_json)
        outcome = self._run(spec, timeout_s=spec.timeout_s)
        if not outcome.is_warm:
            self.end_worker()
        return outcome.result.model_dump_json()

    def run_as_rank(self, spec_json: str) -> str:
        """Runs this rank's part of a trial and answers with a `RankOutcome` as JSON; never raises either.

        Whoever speaks for all ranks watches the time, since only together do they tell who is late; and ends the
        workers where one of them is not warm. Were this one ended at once, its peers would fail for that, or die of it.
        """
        return self._run(TrialSpec.model_validate_json(spec_json), timeout_s=None).model_dump_json()

    def _run(self, spec: TrialSpec, *, timeout_s: float | None) -> RankOutcome:
        has_died = is_clean = False
        tighter_limits: ProofLimits | None = None
        try:
            request = {"kind": "run", "spec": spec.model_dump(mode="json"), **self._place()}
            answer = self._worker().ask(request, timeout_s=timeout_s)
            result = TrialResult.model_validate(answer["result"])
            is_clean = result.status is TrialStatus.COMPLETED and answer["unclean_reason"] is None
            if answer["tighter_limits"] is not None:
                tighter_limits = ProofLimits.model_validate(answer["tighter_limits"])
        except WorkerTimeoutError:
            result = failed_trial(spec, TrialStatus.TIMED_OUT, f"not finished after {timeout_s:g} s; stopped")
        except WorkerDiedError as error:
            result, has_died = failed_trial(spec, TrialStatus.FAILED, str(error), detail=error.detail), True
        return RankOutcome(
            result=result,
            has_died=has_died,
            is_warm=is_clean and not self._process_per_trial,
            tighter_limits=tighter_limits,
        )

    def ask(self, kind: QuestionKind, spec_json: str, timeout_s: float | None) -> str:
        """Answers one question about a workload as JSON, ``{"failure": line}`` where the worker ended or took too long.

        A dry run has a process that is kept for the next dry run; any other question has one of its own. That of
        ranks that play off is ended by whoever speaks for all, as in `run_as_rank`.
        """
        is_without_data = kind == "dry_run"
        what = f"the {kind.replace('_', ' ')}"
        if not is_without_data:
            self.end_worker()
        worker = self._worker_without_data() if is_without_data else self._worker()
        # Ranks play off together; all other questions are answered by one process alone.
        place = self._place() if kind == "playoff" else {}
        try:
            answer = worker.ask({"kind": kind, "spec": json.loads(spec_json), **place}, timeout_s=timeout_s)["answer"]
        except WorkerTimeoutError:
            answer = {"failure": f"{what} was not finished after {timeout_s:g} s; stopped"}
        except WorkerDiedError as error:
            answer = {"failure": f"{error} during {what}"}
        if not is_without_data and not place:
            self.end_worker()
        return json.dumps(answer)

    def stop(self) -> None:
        """Ends the worker processes, and with them a trial that is running; may be called twice."""
        self.end_worker()
        if self._process_without_data is not None:
            self._process_without_data.kill()
            self._process_without_data = None

    def _place(self) -> dict[str, Any]:
        return {} if self._rank is None else {"rank": self._rank.model_dump(mode="json")}

    def _worker(self) -> WorkerProcess:
        self._process = self._alive(self._process)
        return self._process

    def _worker_without_data(self) -> WorkerProcess:
        self._process_without_data = self._alive(self._process_without_data)
        return self._process_without_data

    def _alive(self, process: WorkerProcess | None) -> WorkerProcess:
        if process is not None and process.is_alive:
            return process
        if process is not None:
            process.kill()  # It died between two requests, say for want of memory: not the next one's fault.
        return WorkerProcess(self._environment, base_dir=self._base_dir)

    def end_worker(self) -> None:
        """Ends the process that runs trials, and with it one that is running."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def read_inspection(answer_json: str) -> ModelInspection:
    """What `WorkerAgent.inspect` answered.

    Raises:
        WorkloadError: The model cannot be used as named.
        RunnerError: The worker ended, or the model took too long; the message is one line.
    """
    answer = json.loads(answer_json)
    if "workload_error" in answer:
        raise WorkloadError(answer["workload_error"])
    if "runner_error" in answer:
        logger.debug("worker output:\n%s", answer["detail"])
        output = answer["detail"].strip().splitlines()
        last_output = f"; its last output was: {output[-1]}" if output else ""
        look = "look for calls that end the program and " if "exit code" in answer["runner_error"] else ""
        raise RunnerError(f"{answer['runner_error']}{last_output}; {look}run the model once alone to see why")
    return ModelInspection.model_validate(answer["inspection"])
