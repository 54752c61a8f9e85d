"""The ranks of a trial on a Ray cluster: one agent each in one placement group, and one who speaks for all of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import psutil
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from runners.cluster.agents import NodeAgent
from runners.cluster.code_package import CodePackage
from runners.cluster.nodes import CPU, GPU
from runners.cluster.rank_watch import RankFailure, RankPlace, watch_ranks
from runners.parallel.records import RankSpec
from runners.proof.limits import ProofLimits
from runners.release import release_digest
from runners.trial import InspectionSpec, QuestionKind, TrialSpec, TrialStatus, failed_trial
from runners.worker_agent import RankOutcome

#: Seconds that agents may take to end their workers.
_STOP_S = 10.0


def start_team(
    num_ranks: int,
    resources: Mapping[str, float],
    environment: Mapping[str, str],
    *,
    process_per_trial: bool,
    code: Any,
) -> Any:
    """An actor of class `RankTeam`; it may not be up yet.

    Args:
        resources: Of one rank, by Ray's names.
        environment: Of the worker processes.
        code: Ray's reference to a `CodePackage`; None where nodes need no files of the user's.
    """
    # No restarts and no retries: what crashed a worker once would crash it again.
    team_class: Any = ray.remote(max_restarts=0, max_task_retries=0)(RankTeam)
    return team_class.options(num_cpus=0, max_concurrency=2).remote(  # One call runs a trial, another may stop it.
        num_ranks, resources, environment, process_per_trial, code
    )


class RankAgent(NodeAgent):
    """An agent that knows its machine."""

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray leaves it unannotated

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def interface(self) -> str | None:
        """Name of the network interface that has this machine's address."""
        own = self.address()
        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address == own for each in addresses):
                return name
        return None


class RankTeam:
    """Speaks for all ranks of a trial as a `WorkerAgent` does for its worker; itself a Ray actor.

    It owns the placement group and the agents, so that they end with it. Workers stay joined from trial to trial; after
    a failure all of them are ended and the next trial's join anew.

    Args:
        resources: Of one rank, by Ray's names.
        environment: Variables for the worker processes.
    """

    def __init__(
        self,
        num_ranks: int,
        resources: Mapping[str, float],
        environment: Mapping[str, str],
        process_per_trial: bool,
        code: CodePackage | None,
    ) -> None:
        self._code = code
        self._num_ranks = num_ranks
        self._resources = {name: amount for name, amount in resources.items() if amount > 0}
        self._environment = dict(environment)
        self._process_per_trial = process_per_trial
        self._group: PlacementGroup | None = None
        self._places: list[RankPlace] = []
        self._others: list[dict[str, str]] = []
        self._has_joined = False
        #: By workload: what its proofs are known not to fit beyond.
        self._proof_limits: dict[str, ProofLimits] = {}

    def introduce(self) -> dict[str, str]:
        """As `NodeAgent.introduce`, once every rank has its place; a rank with other code of ours speaks for all."""
        if not self._places:
            self._group, agents = self._placed_agents()
            told = ray.get([agent.introduce.remote() for agent in agents])
            self._places = [RankPlace(agent, each["node_id"]) for agent, each in zip(agents, told, strict=True)]
            self._others = [each for each in told if each["release"] != release_digest()]
        own = {"node_id": str(ray.get_runtime_context().get_node_id()), "host": socket.gethostname()}
        return self._others[0] if self._others else {**own, "release": release_digest()}

    def inspect(self, spec_json: str, timeout_s: float | None) -> str:
        """As `WorkerAgent.inspect`, by one process alone.

        A model that is to be divided is looked at without data where that can be done: one rank need not be able to
        hold it.
        """
        agent, spec = self._agents[0], InspectionSpec.model_validate_json(spec_json)
        answer: str
        if spec.workload.strategy == "fsdp2":
            without_data = spec.model_copy(update={"on_fake_tensors": True})
            answer = ray.get(agent.inspect.remote(without_data.model_dump_json(), timeout_s))
            if "inspection" in json.loads(answer):
                return answer
        answer = ray.get(agent.inspect.remote(spec_json, timeout_s))
        return answer

    def run(self, spec_json: str) -> str:
        """As `WorkerAgent.run`; the reason of a failure begins with the rank that had it.

        Where a proof does not fit, the trial begins anew with less of it: ranks of which one has run out of memory
        cannot agree on that any more.
        """
        spec = TrialSpec.model_validate_json(spec_json)
        workload = spec.workload.model_dump_json()
        limits = self._proof_limits.get(workload, spec.proof_limits)
        while True:
            watched = self._run_on_all(spec.model_copy(update={"proof_limits": limits}))
            if not isinstance(watched, RankFailure) or watched.tighter_limits is None:
                break
            self._end_workers()
            limits = watched.tighter_limits
            if limits.split != "none":  # What is out of reach for one policy may not be for the next.
                self._proof_limits[workload] = limits
        if isinstance(watched, RankFailure):
            self._end_workers()
            return failed_trial(spec, watched.status, watched.reason, detail=watched.detail).model_dump_json()
        outcomes = [RankOutcome.model_validate_json(answer) for answer in watched]
        if not all(outcome.is_warm for outcome in outcomes):
            self._end_workers()
        return outcomes[0].result.model_dump_json()

    def _run_on_all(self, spec: TrialSpec) -> list[str] | RankFailure:
        if not self._has_joined:
            self._join()
        spec_json = spec.model_dump_json()
        running = {agent.run_as_rank.remote(spec_json): rank for rank, agent in enumerate(self._agents)}
        return watch_ranks(self._places, running, timeout_s=spec.timeout_s, failure_of=_failure_of_run)

    def ask(self, kind: QuestionKind, spec_json: str, timeout_s: float | None) -> str:
        """As `WorkerAgent.ask`: the playoff by all ranks together, any other question by one process alone."""
        if kind != "playoff":
            self._has_joined = False  # It ends the first rank's worker.
            answer: str = ray.get(self._agents[0].ask.remote(kind, spec_json, timeout_s))
            return answer
        self._join()
        running = {agent.ask.remote(kind, spec_json, None): rank for rank, agent in enumerate(self._agents)}
        watched = watch_ranks(self._places, running, timeout_s=timeout_s, failure_of=_failure_of_answer)
        self._end_workers()
        if isinstance(watched, RankFailure):
            return json.dumps({"failure": watched.reason})
        return watched[0]

    def stop(self) -> None:
        """Ends all workers and gives their places back; may be called twice."""
        agents, self._places = self._agents, []
        if agents:
            ray.wait([agent.stop.remote() for agent in agents], num_returns=len(agents), timeout=_STOP_S)
        for agent in agents:
            ray.kill(agent)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    @property
    def _agents(self) -> list[Any]:
        return [place.agent for place in self._places]

    def _placed_agents(self) -> tuple[PlacementGroup, list[Any]]:
        # On as few nodes as will do: ranks on one node reach each other fastest.
        group = placement_group([self._resources] * self._num_ranks, strategy="PACK")
        custom = {name: amount for name, amount in self._resources.items() if name not in (CPU, GPU)}
        agent_class: Any = ray.remote(max_restarts=0, max_task_retries=0)(RankAgent)
        agents = [
            agent_class.options(
                num_cpus=self._resources.get(CPU, 0),
                num_gpus=self._resources.get(GPU, 0),
                resources=custom,
                max_concurrency=3,  # One call runs a trial; others ask where it stands, or end it.
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
            ).remote(self._environment, self._process_per_trial, self._code)
            for rank in range(self._num_ranks)
        ]
        return group, agents

    def _join(self) -> None:
        """Tells every rank its place; they meet on the first one's machine."""
        first = self._agents[0]
        address, port = ray.get([first.address.remote(), first.free_port.remote()])
        interfaces = ray.get([agent.interface.remote() for agent in self._agents])
        places = [
            RankSpec(rank=rank, size=self._num_ranks, address=address, port=port, interface=interface)
            for rank, interface in enumerate(interfaces)
        ]
        ray.get([agent.join.remote(p.model_dump_json()) for agent, p in zip(self._agents, places, strict=True)])
        self._has_joined = True

    def _end_workers(self) -> None:
        self._has_joined = False
        ended = [agent.end_worker.remote() for agent in self._agents]
        ray.wait(ended, num_returns=len(ended), timeout=_STOP_S)


def _failure_of_run(rank: int, answer: str) -> RankFailure | None:
    outcome = RankOutcome.model_validate_json(answer)
    result = outcome.result
    if result.status is TrialStatus.COMPLETED:
        return None
    return RankFailure(
        rank,
        result.status,
        f"rank {rank}: {result.reason}",
        detail=result.detail,
        has_died=outcome.has_died,
        tighter_limits=outcome.tighter_limits,
    )


def _failure_of_answer(rank: int, answer: str) -> RankFailure | None:
    reason = json.loads(answer)["failure"]
    return None if reason is None else RankFailure(rank, TrialStatus.FAILED, f"rank {rank}: {reason}")
