"""Trials on the nodes of a Ray cluster, a private local one unless an address is named. Ray core only."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import ray
import ray.exceptions

from runners.base import RunnerError
from runners.cluster.agent_pool import AgentPool, NoNodeError
from runners.cluster.agents import end_agents
from runners.cluster.code_package import CodePackage
from runners.cluster.head import RayHead
from runners.cluster.held_signals import signals_held
from runners.cluster.joined import join_cluster
from runners.cluster.node_speeds import NodeSpeeds
from runners.cluster.nodes import (
    KIND_PREFIX,
    alive_nodes,
    amounts,
    kinds_that_fit,
    node_answers,
    other_kinds,
    total_resources,
)
from runners.cluster.private import start_private_cluster
from runners.cluster.room import ClusterRoom, checked_resources
from runners.cluster.shares import Claim, ClusterShare
from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.process_family import end_orphans
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
from runners.worker_agent import read_inspection

logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=Answer)

#: Seconds for which a look at the cluster's nodes holds.
_LOOK_INTERVAL_S = 1.0
#: Seconds that a cluster may be without a node that a trial fits on: one that is started again, or added.
_NODE_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class RayRunnerOptions:
    """How to reach the nodes and what one trial gets of them.

    Attributes:
        address: A running cluster; None starts a private one on this machine and ends it afterwards.
        resources_per_trial: Amounts by Ray's names (CPU, GPU, NPU, custom); None gives each trial one accelerator
            where the cluster has some, else all CPUs of a node.
        process_per_trial: A new worker process for every trial.
        accelerator_type: Kind of accelerator by Ray's name, such as H100; None takes the kind that the cluster has most
            of. All trials of a study run on one kind.
        code: The user's own files, sent to the nodes of a cluster that was joined; None where they need none.
        claim: What the study wants of a cluster that it shares with others.
        num_ranks: Ranks of one trial, each of which gets the resources; None runs a trial in one process.
    """

    address: str | None = None
    resources_per_trial: Mapping[str, float] | None = None
    process_per_trial: bool = False
    accelerator_type: str | None = None
    code: CodePackage | None = None
    claim: Claim = field(default_factory=Claim)
    num_ranks: int | None = None


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
        self._room = ClusterRoom({}, options.num_ranks)
        self._agents: AgentPool | None = None
        self._in_flight: dict[Any, _InFlight] = {}
        # Trials whose node was lost, until there is room to run them, and whether they had begun there.
        self._waiting: list[tuple[TrialSpec, bool]] = []
        self._capacity = 0
        self._looked_at = -math.inf
        self._speeds = NodeSpeeds()
        self._share: ClusterShare | None = None
        self._head: RayHead | None = None
        self._without_nodes_since: float | None = None

    def open(self) -> None:
        """Starts or joins the cluster and checks that it can run a trial at all.

        Raises:
            RunnerError: Nobody answers at the address, or no node can meet the request.
        """
        if self._is_open:
            return
        with signals_held():
            if self._options.address is None:
                start_private_cluster()
            else:
                join_cluster(self._options.address)
        self._is_open = True
        address = str(ray.get_runtime_context().gcs_address)
        self._head = RayHead(address, self._options.address or "private local cluster")
        options = self._options
        try:
            resources = checked_resources(options.resources_per_trial, options.num_ranks, options.accelerator_type)
        except RunnerError:
            self.close()
            raise
        self._room = ClusterRoom(resources, options.num_ranks)
        code = None
        if options.address is not None:
            self._share = ClusterShare(uuid.uuid4().hex, options.claim)
            code = None if options.code is None else ray.put(options.code)
        self._agents = AgentPool(self._room, process_per_trial=options.process_per_trial, code=code, share=self._share)

    def describe(self) -> str:
        self.open()
        where = self._options.address or "private local cluster"
        nodes = len(alive_nodes())
        others = other_kinds(self._room.resources, alive_nodes())
        untouched = (
            f"; {', '.join(others)} {'is' if len(others) == 1 else 'are'} left to other studies" if others else ""
        )
        return (
            f"Ray: {where}, {nodes} node{'s' if nodes > 1 else ''} with {amounts(total_resources())}; "
            f"each trial gets {self._room.describe()}, {self.capacity()} at a time{untouched}"
        )

    def kinds(self) -> list[str]:
        """Kinds of accelerators that trials fit on; empty where Ray knows none."""
        self.open()
        bare = {name: amount for name, amount in self._room.resources.items() if not name.startswith(KIND_PREFIX)}
        return kinds_that_fit(bare, alive_nodes())

    def on_kind(self, kind: str) -> RayRunner:
        """One for trials on that kind of accelerator alone, with the same files to send; not open yet."""
        return RayRunner(replace(self._options, accelerator_type=kind))

    def capacity(self) -> int:
        """What may be in flight now: on a shared cluster this study's share, as far as others have given it free."""
        self.open()
        if time.monotonic() - self._looked_at >= _LOOK_INTERVAL_S:
            self._look()
        return self._capacity

    def _look(self) -> None:
        """Sees what the cluster has now, which takes long where there are many nodes."""
        self._raise_if_head_is_gone()
        nodes = self._room.nodes()
        slots = self._room.num_trials(nodes)
        if slots < 1:
            self._capacity = 0
        elif self._share is None:
            self._capacity = min(slots, self._options.claim.max_trials or slots)
        else:
            share = self._share.num_trials(slots)
            own = self._give_back_beyond(share)
            # One at least: where all is taken, the next trial waits for what others give back.
            self._capacity = max(1, min(share, own + self._room.num_free(nodes)))
        self._looked_at = time.monotonic()

    def _give_back_beyond(self, share: int) -> int:
        """Gives devices back that are another study's share now; how many this study holds then."""
        num_idle = 0 if self._agents is None else self._agents.num_idle
        own = len(self._in_flight) + num_idle
        surplus = min(num_idle, own - share)
        if self._agents is None or surplus <= 0:
            return own
        self._agents.end_idle(surplus)
        return own - surplus

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        agent, node_id = self._take_agent()
        try:
            answer = ray.get(agent.inspect.remote(spec.model_dump_json(), spec.timeout_s))
        except ray.exceptions.RayError as error:
            raise RunnerError(
                f"the worker on node {node_id[:8]} was lost while the model was built or run: {error}"
            ) from error
        self._open_pool.give_back(agent, node_id)
        return read_inspection(answer)

    def dry_run(self, spec: DryRunSpec) -> DryRunResult:
        return self._ask("dry_run", spec, DryRunResult)

    def diagnosis(self, spec: DiagnosisSpec) -> Diagnosis:
        return self._ask("diagnosis", spec, Diagnosis)

    def step_timeline(self, spec: StepTimelineSpec) -> StepTimeline:
        return self._ask("step_timeline", spec, StepTimeline)

    def submit(self, spec: TrialSpec) -> None:
        try:
            self._submit(spec, retried=False)
        except NoNodeError:
            self._waiting.append((spec, False))

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        self._raise_if_head_is_gone()
        results = self._run_waiting()
        if results:
            return results
        if not self._in_flight:
            self._wait_for_node(timeout_s)
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
            for spec in [*(flight.spec for flight in self._in_flight.values()), *(spec for spec, _ in self._waiting)]
        ]
        end_agents([flight.agent for flight in self._in_flight.values()], is_head_gone=self._is_head_gone)
        self._in_flight.clear()
        self._waiting.clear()
        return cancelled

    def close(self) -> None:
        if not self._is_open:
            return
        self.cancel()
        if self._agents is not None:
            self._agents.close(is_head_gone=self._is_head_gone)
            self._agents = None
        if self._share is not None and not self._is_head_gone:
            self._share.leave()
        # Only this process's connection ends; a cluster that it did not start goes on.
        ray.shutdown()
        if self._options.address is None:
            end_orphans()
        self._is_open = False

    @property
    def _is_head_gone(self) -> bool:
        return self._head is not None and self._head.is_gone

    def _raise_if_head_is_gone(self) -> None:
        if self._head is not None:
            self._head.raise_if_gone()

    def _wait_for_node(self, timeout_s: float) -> None:
        """Where the last node was lost, so that nothing can be started.

        Raises:
            RunnerError: None came for too long; a private cluster gets none.
        """
        if self.capacity() >= 1:
            self._without_nodes_since = None
            return
        asked = self._room.describe()
        now = time.monotonic()
        if self._without_nodes_since is None:
            self._without_nodes_since = now
            if self._options.address is not None:
                logger.warning("no node of the cluster has %s any more; waiting for one", asked)
        if self._options.address is None or now - self._without_nodes_since >= _NODE_TIMEOUT_S:
            raise RunnerError(
                f"no node of the Ray cluster has {asked} any more; go on with --resume once there is one again"
            )
        time.sleep(timeout_s)

    def _ask(self, kind: QuestionKind, spec: QuestionSpec, answer_type: type[AnswerT]) -> AnswerT:
        try:
            agent, node_id = self._take_agent()
        except NoNodeError as error:
            return answer_type(failure=str(error))
        try:
            answer = ray.get(agent.ask.remote(kind, spec.model_dump_json(), spec.timeout_s))
        except ray.exceptions.RayError as error:
            return answer_type(failure=f"the worker on node {node_id[:8]} was lost: {type(error).__name__}")
        self._open_pool.give_back(agent, node_id)
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
        if result.status is TrialStatus.NODE_LOST:
            end_agents([flight.agent])  # What is left of the team; its places go to the next one.
            return self._again(flight, result)
        if self._is_from_slow_node(flight, result):
            return None
        self._open_pool.give_back(flight.agent, flight.node_id)
        return result

    def _is_from_slow_node(self, flight: _InFlight, result: TrialResult) -> bool:
        """True where the node turns out slower than its peers: its figures are no figures, and the trial runs again."""
        if result.device_probe_s is None or self._options.num_ranks is not None:
            return False  # Ranks may be spread over nodes: their speed says nothing of one.
        self._speeds.add(flight.node_id, result.device_probe_s)
        slowness = self._speeds.slowness(flight.node_id)
        if slowness is None or not set(self._room.node_ids()) - {flight.node_id}:
            return False
        self._room.distrust(flight.node_id)
        self._looked_at = -math.inf
        end_agents([flight.agent])
        self._open_pool.end_idle_on(flight.node_id)
        logger.warning(
            "node %s (%s) takes %.2f times as long as its peers for the same work: it gets no further trials, and "
            "trial %d runs again elsewhere",
            result.node,
            flight.node_id[:8],
            slowness,
            flight.spec.trial_number,
        )
        self._waiting.append((flight.spec, True))
        return True

    def _lost(self, flight: _InFlight, error: ray.exceptions.RayError) -> TrialResult | None:
        if node_answers(flight.node_id):
            reason = f"the process that watches over the worker on node {flight.node_id[:8]} died"
            return failed_trial(flight.spec, TrialStatus.FAILED, reason, detail=str(error))
        reason = f"node {flight.node_id[:8]} was lost during the trial"
        return self._again(flight, failed_trial(flight.spec, TrialStatus.NODE_LOST, reason, detail=str(error)))

    def _again(self, flight: _InFlight, lost: TrialResult) -> TrialResult | None:
        """None where the trial, whose node was lost, will run again elsewhere; else that it was lost."""
        self._look()
        if flight.retried or self._capacity < 1:
            again = ", the second time" if flight.retried else ""
            return lost.model_copy(update={"reason": f"{lost.reason}{again}"})
        logger.warning("trial %d: %s; running it again", flight.spec.trial_number, lost.reason)
        self._waiting.append((flight.spec, True))
        return None

    def _run_waiting(self) -> list[TrialResult]:
        """Runs lost trials again as far as there is room; answers those for which there is none any more."""
        lost: list[TrialResult] = []
        while self._waiting and len(self._in_flight) < self.capacity():
            spec, retried = self._waiting.pop()
            try:
                self._submit(spec, retried=retried)
            except NoNodeError:
                self._waiting.append((spec, retried))
                break
            except RunnerError as error:
                lost.append(failed_trial(spec, TrialStatus.NODE_LOST, f"its node was lost, and then {error}"))
        return lost

    def _take_agent(self) -> tuple[Any, str]:
        self.open()
        self._raise_if_head_is_gone()
        return self._open_pool.take()

    @property
    def _open_pool(self) -> AgentPool:
        assert self._agents is not None, "whoever has an agent has opened the runner"
        return self._agents
