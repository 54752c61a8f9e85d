"""Trials on the nodes of a Ray cluster, a private local one unless an address is named. Ray core only."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
import ray.exceptions

from runners.base import RunnerError
from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.private_cluster import start_private_cluster
from runners.step_timeline.records import StepTimeline, StepTimelineSpec
from runners.trial import (
    Answer,
    DryRunResult,
    DryRunSpec,
    InspectionSpec,
    ModelInspection,
    PlayoffResult,
    PlayoffSpec,
    QuestionKind,
    QuestionSpec,
    TrialResult,
    TrialSpec,
    TrialStatus,
    failed_trial,
)
from runners.worker_agent import WorkerAgent, read_inspection

logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=Answer)

#: Seconds until an address that nobody answers on is given up.
_CONNECT_TIMEOUT_S = 5.0
#: Seconds that an agent may take to come up on a cluster that has the resources in total.
_AGENT_TIMEOUT_S = 120.0
#: Seconds that an agent may take to end its worker and all that this started.
_STOP_TIMEOUT_S = 10.0
#: Ray's own names of the resources that it treats apart from custom ones.
_CPU, _GPU = "CPU", "GPU"


@dataclass(frozen=True)
class RayRunnerOptions:
    """How to reach the nodes and what one trial gets of them.

    Attributes:
        address: A running cluster; None starts a private one on this machine and ends it afterwards.
        resources_per_trial: Amounts by Ray's names (CPU, GPU, NPU, custom); None gives each trial one accelerator
            where the cluster has some, else all CPUs of a node.
        process_per_trial: A new worker process for every trial.
    """

    address: str | None = None
    resources_per_trial: Mapping[str, float] | None = None
    process_per_trial: bool = False


@dataclass
class _InFlight:
    spec: TrialSpec
    agent: Any
    node_id: str
    retried: bool


class RayRunner:
    """Runs one trial per agent, one agent per share of the cluster's resources."""

    def __init__(self, options: RayRunnerOptions) -> None:
        self._options = options
        self._is_open = False
        self._resources: dict[str, float] = {}
        self._idle: list[tuple[Any, str]] = []
        self._in_flight: dict[Any, _InFlight] = {}
        self._waiting: list[TrialSpec] = []  # Trials whose node was lost, until there is room to run them again.

    def open(self) -> None:
        """Starts or joins the cluster and checks that it can run a trial at all.

        Raises:
            RunnerError: Nobody answers at the address, or no node can meet the request.
        """
        if self._is_open:
            return
        sigterm_handler = signal.getsignal(signal.SIGTERM)
        if self._options.address is None:
            start_private_cluster()
        else:
            _join(self._options.address)
        if threading.current_thread() is threading.main_thread():
            # Ray takes SIGTERM for itself and would end the process on the spot.
            signal.signal(signal.SIGTERM, sigterm_handler)
        self._is_open = True
        self._resources = dict(self._options.resources_per_trial or _default_resources(_alive_nodes()))
        if self.capacity() < 1:
            asked = _amounts(self._resources)
            has = _amounts(_total_resources())
            self.close()
            raise RunnerError(
                f"runner.resources_per_trial asks {asked}, but no node can give that; the cluster has {has} in all; "
                "ask for less or name another runner.ray_address"
            )

    def describe(self) -> str:
        self.open()
        where = self._options.address or "private local cluster"
        nodes = len(_alive_nodes())
        return (
            f"Ray: {where}, {nodes} node{'s' if nodes > 1 else ''} with {_amounts(_total_resources())}; "
            f"each trial gets {_amounts(self._resources)}, {self.capacity()} at a time"
        )

    def capacity(self) -> int:
        self.open()
        return sum(_fitting(node["Resources"], self._resources) for node in _alive_nodes())

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        agent, node_id = self._take_agent()
        try:
            answer = ray.get(agent.inspect.remote(spec.model_dump_json(), spec.timeout_s))
        except ray.exceptions.RayError as error:
            raise RunnerError(
                f"the worker on node {node_id[:8]} was lost while the model was built or run: {error}"
            ) from error
        self._idle.append((agent, node_id))
        return read_inspection(answer)

    def dry_run(self, spec: DryRunSpec) -> DryRunResult:
        return self._ask("dry_run", spec, DryRunResult)

    def diagnosis(self, spec: DiagnosisSpec) -> Diagnosis:
        return self._ask("diagnosis", spec, Diagnosis)

    def step_timeline(self, spec: StepTimelineSpec) -> StepTimeline:
        return self._ask("step_timeline", spec, StepTimeline)

    def submit(self, spec: TrialSpec) -> None:
        self._submit(spec, retried=False)

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        results = self._run_waiting()
        if results or not self._in_flight:
            return results
        done, _ = ray.wait(list(self._in_flight), num_returns=1, timeout=timeout_s)
        for reference in done:
            flight = self._in_flight.pop(reference)
            result = self._outcome(reference, flight)
            if result is not None:
                results.append(result)
        return results

    def playoff(self, spec: PlayoffSpec) -> PlayoffResult:
        return self._ask("playoff", spec, PlayoffResult)

    def cancel(self) -> Sequence[TrialResult]:
        cancelled = [
            failed_trial(spec, TrialStatus.CANCELLED, "the study was stopped before the trial ended")
            for spec in [*(flight.spec for flight in self._in_flight.values()), *self._waiting]
        ]
        _end([flight.agent for flight in self._in_flight.values()])
        self._in_flight.clear()
        self._waiting.clear()
        return cancelled

    def close(self) -> None:
        if not self._is_open:
            return
        self.cancel()
        _end([agent for agent, _ in self._idle])
        self._idle.clear()
        # Only this process's connection ends; a cluster that it did not start goes on.
        ray.shutdown()
        self._is_open = False

    def _ask(self, kind: QuestionKind, spec: QuestionSpec, answer_type: type[AnswerT]) -> AnswerT:
        agent, node_id = self._take_agent()
        try:
            answer = ray.get(agent.ask.remote(kind, spec.model_dump_json(), spec.timeout_s))
        except ray.exceptions.RayError as error:
            return answer_type(failure=f"the worker on node {node_id[:8]} was lost: {type(error).__name__}")
        self._idle.append((agent, node_id))
        return answer_type.model_validate_json(answer)

    def _submit(self, spec: TrialSpec, *, retried: bool) -> None:
        agent, node_id = self._take_agent()
        self._in_flight[agent.run.remote(spec.model_dump_json())] = _InFlight(spec, agent, node_id, retried)

    def _outcome(self, reference: Any, flight: _InFlight) -> TrialResult | None:
        """The result of a finished trial; None where its node was lost and it runs again elsewhere."""
        try:
            result = TrialResult.model_validate_json(ray.get(reference))
        except ray.exceptions.OutOfMemoryError:
            return failed_trial(
                flight.spec, TrialStatus.OUT_OF_MEMORY, "the node ran out of memory and Ray stopped the worker"
            )
        except ray.exceptions.RayError as error:
            return self._lost(flight, error)
        self._idle.append((flight.agent, flight.node_id))
        return result

    def _lost(self, flight: _InFlight, error: ray.exceptions.RayError) -> TrialResult | None:
        if any(node["NodeID"] == flight.node_id for node in _alive_nodes()):
            reason = f"the process that watches over the worker on node {flight.node_id[:8]} died"
            return failed_trial(flight.spec, TrialStatus.FAILED, reason, detail=str(error))
        if flight.retried or self.capacity() < 1:
            reason = (
                f"node {flight.node_id[:8]} was lost during the trial{', the second time' if flight.retried else ''}"
            )
            return failed_trial(flight.spec, TrialStatus.NODE_LOST, reason, detail=str(error))
        logger.warning("trial %d: node %s was lost; running it again", flight.spec.trial_number, flight.node_id[:8])
        self._waiting.append(flight.spec)
        return None

    def _run_waiting(self) -> list[TrialResult]:
        """Runs lost trials again as far as there is room; answers those for which there is none any more."""
        lost = []
        while self._waiting and (not self._in_flight or len(self._in_flight) < self.capacity()):
            spec = self._waiting.pop()
            try:
                self._submit(spec, retried=True)
            except RunnerError as error:
                lost.append(failed_trial(spec, TrialStatus.NODE_LOST, f"its node was lost, and then {error}"))
        return lost

    def _take_agent(self) -> tuple[Any, str]:
        self.open()
        alive = {node["NodeID"] for node in _alive_nodes()}
        self._idle = [(agent, node_id) for agent, node_id in self._idle if node_id in alive]
        if self._idle:
            return self._idle.pop()
        custom = {name: amount for name, amount in self._resources.items() if name not in (_CPU, _GPU)}
        # No restarts and no retries: what crashed a worker once would crash it again.
        agent_class: Any = ray.remote(max_restarts=0, max_task_retries=0)(_NodeAgent)
        agent = agent_class.options(
            num_cpus=self._resources.get(_CPU, 0),
            num_gpus=self._resources.get(_GPU, 0),
            resources=custom,
            max_concurrency=2,  # One call runs a trial, another may stop it.
        ).remote(_worker_environment(self._resources), self._options.process_per_trial)
        try:
            node_id = ray.get(agent.node_id.remote(), timeout=_AGENT_TIMEOUT_S)
        except ray.exceptions.GetTimeoutError as error:
            ray.kill(agent)
            raise RunnerError(
                f"no node gave {_amounts(self._resources)} within {_AGENT_TIMEOUT_S:g} s; the cluster is busy or has "
                "changed; free resources or lower runner.resources_per_trial"
            ) from error
        except ray.exceptions.RayError as error:
            last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
            raise RunnerError(
                f"no process for trials could be started on the cluster: {last_line}; this package must be installed "
                "on every node"
            ) from error
        return agent, str(node_id)


class _NodeAgent(WorkerAgent):
    """A `WorkerAgent` as a Ray actor."""

    def __init__(self, environment: Mapping[str, str], process_per_trial: bool) -> None:
        super().__init__(environment, process_per_trial=process_per_trial)

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def _end(agents: Sequence[Any]) -> None:
    """Ends agents, and before them their workers with all that these started, which Ray does not know of."""
    if agents:
        ray.wait([agent.stop.remote() for agent in agents], num_returns=len(agents), timeout=_STOP_TIMEOUT_S)
    for agent in agents:
        ray.kill(agent)


def _worker_environment(resources: Mapping[str, float]) -> dict[str, str]:
    """Threads as many as CPUs, equal for all trials; waiting threads sleep, so that a shared machine is not slowed."""
    environment = {
        "OMP_WAIT_POLICY": "passive",
        "KINETO_LOG_LEVEL": "5",  # The profiler's own notices say nothing about a trial.
        "PYTHONSAFEPATH": "1",  # The current folder must not shadow modules of the worker.
        "TOKENIZERS_PARALLELISM": "false",
    }
    num_cpus = int(resources.get(_CPU, 0))
    if num_cpus >= 1:
        environment["OMP_NUM_THREADS"] = str(num_cpus)
    return environment


def _alive_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray leaves it unannotated


def _total_resources() -> dict[str, float]:
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]  # as above


def _default_resources(nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    for accelerator in (_GPU, "NPU"):
        if any(node["Resources"].get(accelerator, 0) >= 1 for node in nodes):
            return {accelerator: 1.0}
    # One trial at a time on a CPU node: neighbours would distort each other's times.
    return {_CPU: min(node["Resources"].get(_CPU, 1.0) for node in nodes)}


def _fitting(available: Mapping[str, float], request: Mapping[str, float]) -> int:
    shares = (available.get(name, 0.0) / amount for name, amount in request.items() if amount > 0)
    # Ray counts resources in ten-thousandths: 1.0 holds ten times 0.1, whatever floating point makes of it.
    return min((int(share + 1e-4) for share in shares), default=1)


def _amounts(resources: Mapping[str, float]) -> str:
    """``CPU: 2, GPU: 1`` without Ray's bookkeeping entries."""
    shown = {
        name: amount
        for name, amount in sorted(resources.items())
        if not name.startswith("node:") and name not in ("memory", "object_store_memory")
    }
    return ", ".join(f"{name}: {amount:g}" for name, amount in shown.items()) or "nothing"


def _join(address: str) -> None:
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise RunnerError(
            f"runner.ray_address is {address}, and the cluster there refused the connection "
            f"({' '.join(str(error).split())[:200]}); if it asks for a token, set RAY_AUTH_MODE=token"
        ) from error


def _check_reachable(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise RunnerError(
            f"runner.ray_address is {address}, but nobody answers there ({error}); start the cluster or leave it out "
            "for a private local one"
        ) from error
