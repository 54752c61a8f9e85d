"""The agents of one study on a cluster: those that wait for work, and new ones where there are too few."""

from __future__ import annotations

import logging
import time
from typing import Any

import ray
import ray.exceptions

from runners.base import RunnerError
from runners.cluster.agents import end_agents, start_agent, worker_environment
from runners.cluster.nodes import alive_nodes
from runners.cluster.rank_team import start_team
from runners.cluster.room import ClusterRoom
from runners.cluster.shares import ClusterShare
from runners.release import release_digest

logger = logging.getLogger(__name__)

#: Seconds that an agent may take to come up on a cluster that has the resources in total, and between two looks whether
#: it still has them.
_AGENT_TIMEOUT_S, _AGENT_LOOK_S = 120.0, 5.0
#: Seconds that a node whose memory was full may take to have room for a process again, and between two tries.
_MEMORY_TIMEOUT_S, _MEMORY_PAUSE_S = 60.0, 2.0


class NoNodeError(RunnerError):
    """The last node that a trial fits on has gone."""


class AgentPool:
    """Agents with the ids of their nodes; one that speaks for several ranks counts as one.

    Args:
        process_per_trial: A new worker process for every trial.
        code: Ray's reference to a `CodePackage`; None where nodes need no files of the user's.
        share: The study's claim on a cluster that others use, too.
    """

    def __init__(self, room: ClusterRoom, *, process_per_trial: bool, code: Any, share: ClusterShare | None) -> None:
        self._room = room
        self._process_per_trial = process_per_trial
        self._code = code
        self._share = share
        self._idle: list[tuple[Any, str]] = []

    @property
    def num_idle(self) -> int:
        """Agents that hold their resources and run nothing."""
        return len(self._idle)

    def take(self) -> tuple[Any, str]:
        """An idle agent, or else a new one, once it is up.

        Raises:
            NoNodeError: No node has room for one any more.
            RunnerError: None could be started, or its node has other code of ours.
        """
        alive = {node["NodeID"] for node in alive_nodes()}
        self._idle = [(agent, node_id) for agent, node_id in self._idle if node_id in alive]
        if self._idle:
            return self._idle.pop()
        agent, introduction = self._introduced_agent()
        if introduction["release"] != release_digest():
            ray.kill(agent)
            raise RunnerError(
                f"node {introduction['host']} runs another version of recompute-tuner than this driver "
                f"({introduction['release']}, here {release_digest()}); install the same on every node"
            )
        return agent, introduction["node_id"]

    def give_back(self, agent: Any, node_id: str) -> None:
        """It has answered, and may be taken again."""
        self._idle.append((agent, node_id))

    def end_idle(self, number: int) -> None:
        """Gives the resources of so many idle agents back, as far as there are some."""
        ended, self._idle = self._idle[:number], self._idle[number:]
        if ended:
            end_agents([agent for agent, _ in ended])

    def end_idle_on(self, node_id: str) -> None:
        """Ends the idle agents of one node."""
        ended = [agent for agent, place in self._idle if place == node_id]
        self._idle = [(agent, place) for agent, place in self._idle if place != node_id]
        end_agents(ended)

    def close(self, *, is_head_gone: bool) -> None:
        """Ends all idle agents."""
        end_agents([agent for agent, _ in self._idle], is_head_gone=is_head_gone)
        self._idle.clear()

    def _introduced_agent(self) -> tuple[Any, dict[str, str]]:
        """A new agent and what it says of itself.

        What filled a node's memory is a while in going after Ray stopped it, and till then Ray stops whatever starts.
        """
        deadline = time.monotonic() + _MEMORY_TIMEOUT_S
        while True:
            agent = self._start()
            try:
                return agent, self._introduction(agent)
            except ray.exceptions.OutOfMemoryError as error:
                if time.monotonic() >= deadline:
                    raise RunnerError(
                        "a node has too little memory left for one more process, so Ray stops each; end what else "
                        "fills that node, then go on with --resume"
                    ) from error
                time.sleep(_MEMORY_PAUSE_S)

    def _start(self) -> Any:
        resources = self._room.resources
        environment = worker_environment(resources)
        if self._room.num_ranks is not None:
            return start_team(
                self._room.num_ranks,
                resources,
                environment,
                process_per_trial=self._process_per_trial,
                code=self._code,
            )
        return start_agent(
            resources,
            environment,
            process_per_trial=self._process_per_trial,
            code=self._code,
            only_on=self._room.trusted_node(),
        )

    def _introduction(self, agent: Any) -> dict[str, str]:
        """What the agent says of itself once it is up; on a shared cluster that waits until others give room."""
        answer = agent.introduce.remote()
        deadline = time.monotonic() + _AGENT_TIMEOUT_S
        room = self._room
        while True:
            try:
                introduction: dict[str, str] = ray.get(answer, timeout=_AGENT_LOOK_S)
                return introduction
            except ray.exceptions.GetTimeoutError as error:
                if room.num_trials(room.nodes()) < 1:
                    ray.kill(agent)
                    raise NoNodeError(f"no node of the Ray cluster has {room.describe()} any more") from error
                if time.monotonic() < deadline:
                    continue
                if self._share is not None and self._share.num_trials(room.num_trials(alive_nodes())) >= 1:
                    logger.info("waiting for %s: all of it is in use on the cluster", room.describe())
                    deadline += _AGENT_TIMEOUT_S
                    continue
                ray.kill(agent)
                raise RunnerError(
                    f"no node gave {room.describe()} within {_AGENT_TIMEOUT_S:g} s; the cluster is busy or "
                    "has changed; free resources or lower runner.resources_per_trial"
                ) from error
            except ray.exceptions.OutOfMemoryError:
                raise
            except ray.exceptions.RayError as error:
                last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
                raise RunnerError(
                    f"no process for trials could be started on the cluster: {last_line}; this package must be "
                    "installed on every node"
                ) from error
