from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from runners.base import RunnerError, WorkloadError
from runners.cluster.nodes import fitting
from runners.ray_runner import RayRunner, RayRunnerOptions
from runners.trial import DryRunSpec, InspectionSpec, TrialResult, TrialStatus, Verdict

Trials = Any


def collect_one(runner: RayRunner, timeout_s: float = 90.0) -> TrialResult:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        results = runner.collect(1.0)
        if results:
            (result,) = results
            return result
    raise AssertionError(f"no result within {timeout_s:g} s")


def family() -> list[psutil.Process]:
    """Workers and all that they started, wherever they are."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if "RECOMPUTE_TUNER_FAMILY" in (process.info["environ"] or {})
    ]


def wait_until(condition: Any, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def started_since(before: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [process for process in family() if process not in before]


@pytest.fixture(scope="module")
def runner() -> Iterator[RayRunner]:
    """A private cluster, opened although the environment names a dead one."""
    before = set(psutil.Process().children(recursive=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        opened = RayRunner(RayRunnerOptions(resources_per_trial={"CPU": 1}))
        opened.open()
    yield opened
    opened.close()
    opened.close()
    left = set(psutil.Process().children(recursive=True)) - before
    _, alive = psutil.wait_procs(left, timeout=20)
    assert alive == []


@pytest.mark.ray
class TestPrivateCluster:
    def test_dry_run_answers_and_a_model_without_one_is_a_refusal(self, runner: RayRunner, trials: Trials) -> None:
        for factory, has_dry_run in (("stack.py:plain", True), ("chance.py:noisy_routing", False)):
            maker = trials(factory, num_blocks=3 if has_dry_run else 2)
            spec = DryRunSpec(workload=maker.workload(), policies=(maker.policy("none", micro=4),), timeout_s=90)
            result = runner.dry_run(spec)
            assert (result.failure is None, len(result.peaks_bytes)) == (has_dry_run, int(has_dry_run))

    def test_says_what_it_runs_on_and_how_many_at_once(self, runner: RayRunner) -> None:
        cpus = psutil.cpu_count()
        assert runner.describe() == (
            f"Ray: private local cluster, 1 node with CPU: {cpus}; each trial gets CPU: 1, {cpus} at a time"
        )
        assert runner.capacity() == cpus

    def test_listens_on_the_loopback_address_alone(self, runner: RayRunner, trials: Trials) -> None:
        """Before and after a worker is there, since workers of Ray have servers of their own."""
        runner.inspect(InspectionSpec(workload=trials("stack.py:plain").workload(), timeout_s=60.0))
        own = psutil.Process()
        servers = {
            (connection.laddr.ip.removeprefix("::ffff:"), process)
            for process in (own, *own.children(recursive=True))
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert {address for address, _ in servers} == {"127.0.0.1"}
        # Ray starts the process of its dashboard all the same; it only serves no page.
        assert not any(word.endswith("dashboard.py") for _, process in servers for word in process.cmdline())

    def test_asks_strangers_for_a_token(self, runner: RayRunner) -> None:
        runner.open()
        address = ray.get_runtime_context().gcs_address
        script = f"from ray._raylet import GcsClient; GcsClient(address={address!r}).internal_kv_keys(b'', None)"

        def call_with(token: str) -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, "RAY_AUTH_TOKEN": token}
            command = [sys.executable, "-c", script]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

        stranger = call_with("0" * 64)
        assert stranger.returncode == 1
        assert "AuthenticationError" in stranger.stderr
        assert call_with(os.environ["RAY_AUTH_TOKEN"]).returncode == 0

    def test_model_is_not_told_the_token(self, runner: RayRunner, trials: Trials) -> None:
        workload = trials("surroundings.py:telling", args={"names": ["RAY_AUTH_TOKEN", "PATH"]}).workload()
        with pytest.raises(WorkloadError, match=r"RAY_AUTH_TOKEN is absent, PATH is there"):
            runner.inspect(InspectionSpec(workload=workload, timeout_s=60.0))

    def test_trial_end_to_end(self, runner: RayRunner, trials: Trials) -> None:
        runner.submit(trials("chance.py:dropout", num_blocks=3).spec("block", micro=4, number=11))
        result = collect_one(runner)
        assert (result.status, result.reason, result.trial_number) == (TrialStatus.COMPLETED, None, 11)
        assert result.verification.verdict is Verdict.MATCH
        assert result.device == f"{os.uname().machine} CPU, 1 threads"
        assert runner.collect(0.1) == []

    def test_inspection(self, runner: RayRunner, trials: Trials) -> None:
        spec = InspectionSpec(workload=trials("stack.py:plain").workload(), timeout_s=60.0)
        inspection = runner.inspect(spec)
        assert inspection.shape.block_lists[0].num_blocks == 3
        assert inspection.environment["omp_wait_policy"] == "passive"
        assert inspection.environment["niceness"] == os.nice(0)  # Ray's own workers would run at 15

    def test_mistake_in_the_workload(self, runner: RayRunner, trials: Trials) -> None:
        spec = InspectionSpec(workload=trials("stack.py:plian").workload(), timeout_s=60.0)
        with pytest.raises(WorkloadError, match=r"model\.factory is stack\.py:plian.*plain"):
            runner.inspect(spec)

    def test_trial_that_goes_wrong_is_a_result(self, runner: RayRunner, trials: Trials) -> None:
        runner.submit(trials("resources.py:failing", args={"how": "allocator"}).spec("none", number=3))
        result = collect_one(runner)
        assert (result.status, result.trial_number) == (TrialStatus.OUT_OF_MEMORY, 3)

    def test_cancelling_ends_a_trial_with_all_it_started(self, runner: RayRunner, trials: Trials) -> None:
        before = family()
        runner.submit(trials("resources.py:failing", args={"how": "child_loop"}).spec("none", number=4))
        wait_until(lambda: any(p.name() == "sleep" for p in started_since(before)))
        started = [p for p in started_since(before) if p.name() == "sleep"]
        (result,) = runner.cancel()
        assert (result.status, result.trial_number) == (TrialStatus.CANCELLED, 4)
        assert psutil.wait_procs(started, timeout=10)[1] == []
        assert runner.collect(0.1) == []

    def test_trials_go_on_after_cancelling(self, runner: RayRunner, trials: Trials) -> None:
        runner.submit(trials("stack.py:plain", num_blocks=3).spec("none", number=5))
        assert collect_one(runner).status is TrialStatus.COMPLETED


@pytest.mark.ray
def test_request_that_no_node_can_meet_is_refused_with_what_the_cluster_has() -> None:
    script = (
        "from runners.ray_runner import RayRunner, RayRunnerOptions\n"
        "RayRunner(RayRunnerOptions(resources_per_trial={'CPU': 1, 'NPU': 2})).open()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "runners.base.RunnerError: runner.resources_per_trial asks CPU: 1, NPU: 2, but no node can give that; "
        f"the cluster has CPU: {psutil.cpu_count()} in all; ask for less or name another runner.ray_address"
    )


def test_address_that_nobody_answers_at_is_named_within_seconds() -> None:
    start = time.monotonic()
    with pytest.raises(RunnerError, match=r"runner\.ray_address is 127\.0\.0\.1:9, but nobody answers there"):
        RayRunner(RayRunnerOptions(address="127.0.0.1:9")).describe()
    assert time.monotonic() - start < 10


def test_driver_does_not_load_torch() -> None:
    script = (
        "import sys; import runners.ray_runner; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'mlflow', 'optuna'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("available", "request_", "expected"),
    [
        ({"CPU": 8.0}, {"CPU": 2.0}, 4),
        ({"CPU": 8.0}, {"CPU": 3.0}, 2),
        ({"CPU": 8.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 0.1}, 8),
        ({"GPU": 1.0}, {"GPU": 0.1}, 10),
        ({"GPU": 1.0}, {"GPU": 0.3}, 3),
        ({"CPU": 8.0}, {"NPU": 1.0}, 0),
        ({"CPU": 8.0}, {"CPU": 0.0, "NPU": 0.0}, 1),
    ],
    ids=str,
)
def test_trials_that_fit_on_a_node(available: dict[str, float], request_: dict[str, float], expected: int) -> None:
    assert fitting(available, request_) == expected


@pytest.mark.ray
@pytest.mark.slow
def test_trial_of_a_lost_node_runs_again_once_another_node_is_free_and_a_node_that_returns_is_used(
    tmp_path: Path,
) -> None:
    """In a process of its own, since this session has a cluster already."""
    script = Path(__file__).parent / "lose_a_node.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [
        *("1", "COMPLETED", "0", "COMPLETED", "2", "NODE_LOST"),
        *("3", "COMPLETED", "left", "0"),
    ]
