"""Actors on the nodes of a Ray cluster that run trials: how one is started, what it says of itself, how it ends."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runners.cluster.code_package import CodePackage, code_folder_here
from runners.cluster.nodes import CPU, GPU
from runners.parent_watch import end_with_parent
from runners.process_family import end_orphans
from runners.release import release_digest
from runners.worker_agent import WorkerAgent

#: Seconds that an agent may take to end its worker and all that this started.
_STOP_TIMEOUT_S = 10.0


def start_agent(
    resources: Mapping[str, float],
    environment: Mapping[str, str],
    *,
    process_per_trial: bool,
    code: Any,
    only_on: str | None,
) -> Any:
    """An actor of class `NodeAgent` that holds the resources; it may not be up yet.

    Args:
        environment: Of its worker processes.
        code: Ray's reference to a `CodePackage`; None where nodes need no files of the user's.
        only_on: Id of the node that it must be on; None spreads agents over all nodes that have room.
    """
    custom = {name: amount for name, amount in resources.items() if name not in (CPU, GPU)}
    # No restarts and no retries: what crashed a worker once would crash it again.
    agent_class: Any = ray.remote(max_restarts=0, max_task_retries=0)(NodeAgent)
    return agent_class.options(
        num_cpus=resources.get(CPU, 0),
        num_gpus=resources.get(GPU, 0),
        resources=custom,
        scheduling_strategy="SPREAD" if only_on is None else NodeAffinitySchedulingStrategy(only_on, soft=False),
        max_concurrency=2,  # One call runs a trial, another may stop it.
    ).remote(environment, process_per_trial, code)


class NodeAgent(WorkerAgent):
    """A `WorkerAgent` as a Ray actor."""

    def __init__(self, environment: Mapping[str, str], process_per_trial: bool, code: CodePackage | None) -> None:
        end_orphans()
        base_dir = None if code is None else str(code_folder_here(code))
        super().__init__(environment, process_per_trial=process_per_trial, base_dir=base_dir)
        end_with_parent(self.stop)

    def introduce(self) -> dict[str, str]:
        """Where this is, and which code of ours runs here."""
        node_id = str(ray.get_runtime_context().get_node_id())
        return {"node_id": node_id, "host": socket.gethostname(), "release": release_digest()}


def end_agents(agents: Sequence[Any], *, is_head_gone: bool = False) -> None:
    """Ends agents, and before them their workers with all that these started, which Ray does not know of.

    Args:
        is_head_gone: Only their workers can be ended then.
    """
    if agents:
        ray.wait([agent.stop.remote() for agent in agents], num_returns=len(agents), timeout=_STOP_TIMEOUT_S)
    if not is_head_gone:
        for agent in agents:
            ray.kill(agent)


def worker_environment(resources: Mapping[str, float]) -> dict[str, str]:
    """Threads as many as CPUs, equal for all trials; waiting threads sleep, so that a shared machine is not slowed."""
    environment = {
        "OMP_WAIT_POLICY": "passive",
        "KINETO_LOG_LEVEL": "6",  # The profiler's own notices say nothing about a trial.
        "PYTHONSAFEPATH": "1",  # The current folder must not shadow modules of the worker.
        "TOKENIZERS_PARALLELISM": "false",
    }
    num_cpus = int(resources.get(CPU, 0))
    if num_cpus >= 1:
        environment["OMP_NUM_THREADS"] = str(num_cpus)
    return environment
