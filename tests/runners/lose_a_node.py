"""Runs trials on a cluster of two nodes, takes both away, gives one back, and prints how each trial ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from runners.ray_runner import RayRunner, RayRunnerOptions
from runners.trial import MeasurementSpec, TrialResult, TrialSpec, WorkloadSpec
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy


def trial(number: int, folder: Path) -> TrialSpec:
    """A trial that goes on until the file `go` is there."""
    workload = WorkloadSpec(
        model_factory="resources.py:waiting",
        model_args={"folder": str(folder), "number": number},
        base_dir=str(Path(__file__).parent / "models"),
        device="cpu",
    )
    policy = RecomputePolicy(BatchShape(2, 1, 1, 2), (BlockListPlacement("blocks", 2),))
    measurement = MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1, verify=False)
    return TrialSpec(trial_number=number, policy=policy, workload=workload, measurement=measurement)


def wait_for(path: Path) -> None:
    wait_until(path.exists)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def collect(runner: RayRunner) -> TrialResult:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for result in runner.collect(0.5):
            print(result.trial_number, result.status.value, flush=True)
            return result
    raise AssertionError("no result")


def main(folder: Path) -> None:
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    runner = RayRunner(RayRunnerOptions(address=cluster.address, resources_per_trial={"CPU": 1}))
    for number in range(2):
        runner.submit(trial(number, folder))
        wait_for(folder / f"began-{number}")
    first_node_id = next(iter(runner._in_flight.values())).node_id
    lost, kept = sorted(nodes, key=lambda node: node.node_id != first_node_id)
    cluster.remove_node(lost)
    # Nothing can run the lost trial again until the other one is through.
    time.sleep(3)
    (folder / "go").touch()
    collect(runner)
    collect(runner)
    (folder / "go").unlink()
    runner.submit(trial(2, folder))
    wait_for(folder / "began-2")
    cluster.remove_node(kept)
    collect(runner)
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    wait_until(lambda: runner.capacity() == 1)
    (folder / "go").touch()
    runner.submit(trial(3, folder))
    collect(runner)
    runner.close()
    print("left", len(runner._in_flight) + len(runner._waiting))
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
