"""A cluster of several nodes as processes of one machine; prints what the runner makes of it, a line per fact."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from runners.base import RunnerError
from runners.cluster.code_package import pack_code
from runners.cluster.nodes import alive_nodes
from runners.cluster.shares import Claim, ClusterShare
from runners.ray_runner import RayRunner, RayRunnerOptions
from runners.trial import MeasurementSpec, TrialResult, TrialSpec, WorkloadSpec
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy


def trial(number: int, code: Path, signs: Path) -> TrialSpec:
    """A trial that goes on until the file `go` is among the signs."""
    workload = WorkloadSpec(
        model_factory="resources.py:waiting",
        model_args={"folder": str(signs), "number": number},
        base_dir=str(code),
        device="cpu",
    )
    policy = RecomputePolicy(BatchShape(2, 1, 1, 2), (BlockListPlacement("blocks", 2),))
    measurement = MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1, verify=False)
    return TrialSpec(trial_number=number, policy=policy, workload=workload, measurement=measurement)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def collect_all(runner: RayRunner, number: int) -> list[TrialResult]:
    results: list[TrialResult] = []
    deadline = time.monotonic() + 120
    while len(results) < number:
        assert time.monotonic() < deadline, f"{len(results)} of {number} results"
        results += runner.collect(0.5)
    return sorted(results, key=lambda result: result.trial_number)


def main(folder: Path) -> None:
    code, signs = folder / "code", folder / "signs"
    signs.mkdir()
    shutil.copytree(Path(__file__).parent / "models", code)
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})

    def add(kind: str) -> Any:
        return cluster.add_node(num_cpus=1, num_gpus=1, resources={f"accelerator_type:{kind}": 1})

    for kind in ("A100", "H100", "A100"):
        add(kind)
    cluster.wait_for_nodes()
    package = pack_code(code)
    # No node has the folder any more: what runs there came with the package.
    code.rename(folder / "gone")
    runner = RayRunner(RayRunnerOptions(address=cluster.address, code=package))
    print(runner.describe().partition("; ")[2], flush=True)
    kinds = {n["NodeID"]: k for n in alive_nodes() for k in n["Resources"] if k.startswith("accelerator_type")}
    for number in range(2):
        runner.submit(trial(number, code, signs))
    wait_until(lambda: len(list(signs.glob("began-*"))) == 2)
    nodes = [flight.node_id for flight in runner._in_flight.values()]
    print("nodes", len(set(nodes)), sorted({kinds[node] for node in nodes}), flush=True)
    late = add("A100")
    cluster.wait_for_nodes()
    wait_until(lambda: runner.capacity() == 3)
    print("joined", runner.capacity(), flush=True)
    runner.submit(trial(2, code, signs))
    wait_until(lambda: (signs / "began-2").exists())
    cluster.remove_node(late)
    wait_until(lambda: runner.capacity() == 2)
    (signs / "go").touch()
    print("ended", [(r.trial_number, r.status.value) for r in collect_all(runner, 3)], flush=True)
    other = ClusterShare("another study", Claim(priority=3))
    print("shares", other.num_trials(2), end=" ")
    time.sleep(2.5)
    print(runner.capacity(), runner._agents.num_idle, end=" ")
    other.leave()
    time.sleep(2.5)
    print(runner.capacity(), flush=True)
    for number in (3, 4):
        runner.submit(trial(number, code, signs))
    fast, slow = (flight.node_id for flight in runner._in_flight.values())
    # As if trials before had found one node many times as fast as the other.
    for node, time_s in ((fast, 1e-9), (fast, 1e-9), (slow, 1.0)):
        runner._speeds.add(node, time_s)
    ended = collect_all(runner, 2)
    print("slow", [(r.trial_number, r.status.value) for r in ended], runner.capacity(), flush=True)
    runner.close()
    for asked in ("H100", "B200"):
        narrowed = RayRunner(RayRunnerOptions(address=cluster.address, accelerator_type=asked))
        try:
            print("asked", narrowed.describe().partition("; ")[2], flush=True)
        except RunnerError as error:
            print("refused", error, flush=True)
        narrowed.close()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
