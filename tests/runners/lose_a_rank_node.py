"""Trials of four ranks on a cluster of several nodes, of which one after another is lost as if its power went.

Prints a line per fact: how each trial ended, and what is left running of the lost ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import ray
import ray._private.state as ray_state
from ray.cluster_utils import Cluster

from runners.cluster.nodes import alive_nodes
from runners.ray_runner import RayRunner, RayRunnerOptions
from runners.trial import MeasurementSpec, TrialResult, TrialSpec, WorkloadSpec
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy

NUM_RANKS = 4
#: All processes of this script's cluster carry it.
MARK = "LOSE_A_RANK_NODE"


def trial(number: int, signs: Path) -> TrialSpec:
    """A trial whose ranks go on once the file `go` is among the signs."""
    workload = WorkloadSpec(
        model_factory="ranks.py:waiting",
        model_args={"folder": str(signs), "number": number},
        base_dir=str(Path(__file__).parent / "models"),
        device="cpu",
        strategy="ddp",
    )
    policy = RecomputePolicy(BatchShape(1, 1, NUM_RANKS, NUM_RANKS), (BlockListPlacement("blocks", 2),))
    measurement = MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1, verify=False)
    return TrialSpec(trial_number=number, policy=policy, workload=workload, measurement=measurement)


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)


def all_began(signs: Path, number: int) -> None:
    wait_until(lambda: len(list(signs.glob(f"began-{number}-*"))) == NUM_RANKS, f"trial {number} on all ranks")


def collect(runner: RayRunner) -> TrialResult:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for result in runner.collect(0.5):
            return result
    raise AssertionError("no result")


def nodes_of(class_name: str) -> list[str]:
    """Ids of the nodes on which actors of the class are alive."""
    actors = ray_state.actors().values()
    return [a["Address"]["NodeID"] for a in actors if a["State"] == "ALIVE" and a["ActorClassName"] == class_name]


def lose(cluster: Any, node_id: str) -> None:
    """Ends everything on the node at once, without a word to anybody."""
    node = next(node for node in cluster.worker_nodes if node.node_id == node_id)
    [raylet] = [each.process for each in node.all_processes["raylet"]]
    for process in (*psutil.Process(raylet.pid).children(recursive=True), psutil.Process(raylet.pid)):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: node_id not in {each["NodeID"] for each in alive_nodes()}, "the loss of the node")


def workers() -> int:
    """Processes of this script's cluster that run ranks."""
    count = 0
    for process in psutil.process_iter(["cmdline", "environ"]):
        is_ours = (process.info["environ"] or {}).get(MARK) == str(os.getpid())
        count += is_ours and "runners.worker_main" in (process.info["cmdline"] or [])
    return count


def main(signs: Path) -> None:
    os.environ[MARK] = str(os.getpid())
    os.environ.update(RAY_raylet_start_wait_time_s="240")  # Nodes of a busy machine take their time.
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    runner = RayRunner(RayRunnerOptions(address=cluster.address, resources_per_trial={"CPU": 1}, num_ranks=NUM_RANKS))
    runner.submit(trial(0, signs))
    all_began(signs, 0)
    team, ranks = nodes_of("RankTeam")[0], nodes_of("RankAgent")
    print("nodes", len(set(ranks)), "ranks", len(ranks), flush=True)
    lost = next(node for node in ranks if node != team)
    for sign in signs.glob("began-0-*"):
        sign.unlink()
    lose(cluster, lost)
    (signs / "go").touch()
    result = collect(runner)
    print(result.trial_number, result.status.value, result.reason, len(list(signs.glob("began-0-*"))), flush=True)
    (signs / "go").unlink()
    runner.submit(trial(1, signs))
    all_began(signs, 1)
    lose(cluster, next(node for node in nodes_of("RankAgent") if node not in nodes_of("RankTeam")))
    result = collect(runner)
    reason = str(result.reason)
    for node in (*cluster.worker_nodes, lost):
        reason = reason.replace(getattr(node, "node_id", str(node))[:8], "NODE")
    print(result.trial_number, result.status.value, reason, runner.capacity(), flush=True)
    wait_until(lambda: workers() == 0, "the end of the ranks that were left")
    print("left", workers(), len(runner._in_flight) + len(runner._waiting), flush=True)
    runner.close()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
