"""A worker seen from outside: whatever a trial does to its process is a result, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from runners.base import RunnerError
from runners.trial import InspectionSpec, TrialResult, TrialSpec, TrialStatus
from runners.worker_agent import WorkerAgent, read_inspection
from runners.worker_process import WorkerDiedError, WorkerProcess, WorkerTimeoutError

Trials = Any


class Watched:
    """An agent, and all processes that were ever seen below this one."""

    def __init__(self, *, process_per_trial: bool = False) -> None:
        self.agent = WorkerAgent({"PYTHONSAFEPATH": "1"}, process_per_trial=process_per_trial)
        self.seen: set[psutil.Process] = set()

    def run(self, spec: TrialSpec) -> TrialResult:
        result = TrialResult.model_validate_json(self.agent.run(spec.model_dump_json()))
        self.look()
        return result

    def look(self) -> None:
        self.seen |= set(psutil.Process().children(recursive=True))

    def still_running(self) -> list[psutil.Process]:
        deadline = time.monotonic() + 5
        while any(is_running(p) for p in self.seen) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [p for p in self.seen if is_running(p)]


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def watched() -> Iterator[Watched]:
    worker = Watched()
    yield worker
    worker.agent.stop()
    assert worker.still_running() == []


def failing(trials: Trials, how: str, **options: Any) -> TrialSpec:
    return trials("resources.py:failing", args={"how": how, "from_samples": 8}).spec("block", **options)


def plain(trials: Trials, **options: Any) -> TrialSpec:
    return trials("stack.py:plain", num_blocks=3).spec("none", **options)


class TestTrials:
    def test_clean_ones_share_a_process_until_one_never_ends(self, watched: Watched, trials: Trials) -> None:
        specs = [plain(trials), failing(trials, "print"), failing(trials, "read"), plain(trials)]
        results = [watched.run(spec) for spec in specs]
        assert [(result.status, result.reason) for result in results] == [(TrialStatus.COMPLETED, None)] * 4
        assert len({result.worker_pid for result in results}) == 1
        assert results[0].worker_pid != os.getpid()
        start = time.monotonic()
        endless = watched.run(failing(trials, "loop", timeout_s=2.0))
        assert (endless.status, endless.reason) == (TrialStatus.TIMED_OUT, "not finished after 2 s; stopped")
        assert time.monotonic() - start < 15
        assert watched.still_running() == []

    @pytest.mark.parametrize(
        ("how", "reason"),
        [
            ("kill", "worker died (signal 9, SIGKILL, likely memory)"),
            pytest.param("segfault", "worker died (signal 11, SIGSEGV)", marks=pytest.mark.slow),
            ("fork_and_die", "worker died (exit code 9)"),
        ],
    )
    def test_one_that_kills_its_process_fails_with_the_way_it_died(
        self, watched: Watched, trials: Trials, how: str, reason: str
    ) -> None:
        # The child that the last one forks holds the pipe open: its end must be noticed all the same.
        result = watched.run(failing(trials, how, timeout_s=100.0))
        assert (result.status, result.reason) == (TrialStatus.FAILED, reason)
        assert how != "fork_and_die" or "my last words" in result.detail
        assert watched.still_running() == []

    @pytest.mark.slow
    def test_one_that_leaves_a_process_behind_gets_its_own_replaced(self, watched: Watched, trials: Trials) -> None:
        first = watched.run(failing(trials, "detached_child"))
        assert first.status is TrialStatus.COMPLETED
        assert watched.still_running() == []
        second = watched.run(failing(trials, "nothing"))
        assert second.worker_pid != first.worker_pid
        died_idle = psutil.Process(second.worker_pid)
        died_idle.kill()
        died_idle.wait(timeout=5)
        assert watched.run(plain(trials)).status is TrialStatus.COMPLETED

    def test_one_process_each_where_asked(self, trials: Trials) -> None:
        worker = Watched(process_per_trial=True)
        assert worker.run(plain(trials)).status is TrialStatus.COMPLETED
        assert worker.still_running() == []


class TestRequests:
    def test_one_that_cannot_be_read_ends_the_process_with_its_reason(self) -> None:
        process = WorkerProcess({})
        with pytest.raises(WorkerDiedError, match=r"worker died \(exit code 1\)") as died:
            process.ask({"kind": "run", "spec": {"trial_number": "first"}}, timeout_s=60)
        assert "ValidationError" in died.value.detail
        assert not process.is_alive

    def test_one_that_is_not_answered_in_time_ends_the_process(self) -> None:
        process = WorkerProcess({})
        with pytest.raises(WorkerTimeoutError, match="the worker did not answer in time"):
            process.ask({"kind": "run", "spec": {}}, timeout_s=0.0)
        assert not process.is_alive
        process.kill()


class TestInspection:
    def inspect(self, watched: Watched, maker: Any, timeout_s: float | None = 60.0) -> dict[str, Any]:
        spec = InspectionSpec(workload=maker.workload(), micro_batch_size=2)
        answer: dict[str, Any] = json.loads(watched.agent.inspect(spec.model_dump_json(), timeout_s))
        watched.look()
        return answer

    def test_answers_with_the_shape_or_the_mistake_or_why_there_is_no_answer(
        self, watched: Watched, trials: Trials
    ) -> None:
        answer = self.inspect(watched, trials("stack.py:plain"))
        assert answer["inspection"]["shape"]["block_lists"][0]["path"] == "blocks"
        assert answer["inspection"]["environment"]["num_threads"] == 1
        assert "plian" in self.inspect(watched, trials("stack.py:plian"))["workload_error"]
        deadly = trials("resources.py:failing", args={"how": "kill", "from_samples": 2})
        assert self.inspect(watched, deadly)["runner_error"] == (
            "worker died (signal 9, SIGKILL, likely memory) while the model was built or run"
        )
        endless = trials("resources.py:failing", args={"how": "loop", "from_samples": 2})
        answer = self.inspect(watched, endless, timeout_s=2.0)
        assert answer["workload_error"] == (
            "the model could not be built and traced within the 2 s of runner.trial_timeout; "
            "raise that, or let the factory load less"
        )
        assert watched.still_running() == []


@pytest.mark.parametrize(
    "how, output, line",
    [
        ("exit code 0", "", "look for calls that end the program and run the model once alone to see why"),
        ("exit code 1", "a\nb\n", "its last output was: b; look for calls that end the program and run the model"),
        ("signal 9, SIGKILL, likely memory", "", "run the model once alone to see why"),
    ],
)
def test_what_is_said_of_a_worker_that_ended_while_the_model_was_looked_at(how: str, output: str, line: str) -> None:
    error = f"worker died ({how}) while the model was built or run"
    with pytest.raises(RunnerError, match=f"^{re.escape(f'{error}; {line}')}"):
        read_inspection(json.dumps({"runner_error": error, "detail": output}))
