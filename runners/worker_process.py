"""A worker in a process of its own, seen from outside: started, asked, timed, killed with everything it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from runners.process_family import FAMILY_VARIABLE, end_family, new_family

#: Bytes of a dead worker's standard error that are kept for the log.
_KEPT_STDERR_BYTES = 20_000
#: Seconds after which a silent process is looked at: a child of it may hold the pipe open after it is gone.
_LOOK_INTERVAL_S = 1.0
#: Seconds that a process has for printing its stack, and between two looks whether it has.
_STACK_WAIT_S, _STACK_LOOK_S = 1.0, 0.05
#: Variables that let their holder into the cluster and the stores, which no model has to know.
_CREDENTIALS = (
    "RAY_AUTH_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "PGPASSWORD",
)


class WorkerDiedError(Exception):
    """The process ended without an answer; the message says how, `detail` holds its last output."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


class WorkerTimeoutError(Exception):
    """The process did not answer in time and was killed."""


class WorkerProcess:
    """One worker process and the pipe to it.

    Args:
        environment: Variables set for the process on top of those of the caller.
        base_dir: Where the user's files are on this machine; None leaves that to the requests.
    """

    def __init__(self, environment: Mapping[str, str], *, base_dir: str | None = None) -> None:
        self._base_dir = base_dir
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._family = new_family()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runners.worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**_without_credentials(os.environ), **environment, FAMILY_VARIABLE: self._family},
            start_new_session=True,
        )
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], *, timeout_s: float | None) -> dict[str, Any]:
        """Sends one request and waits for its answer.

        Raises:
            WorkerDiedError: The process ended first.
            WorkerTimeoutError: Nothing came within ``timeout_s``; the process is killed.
        """
        assert self._process.stdin is not None
        if self._base_dir is not None:
            workload = {**request["spec"]["workload"], "base_dir": self._base_dir}
            request = {**request, "spec": {**request["spec"], "workload": workload}}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        line = self._read_line(None if timeout_s is None else time.monotonic() + timeout_s)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stack(self) -> str:
        """What the process prints of its Python stack when it is asked; empty where it does not within a second."""
        descriptor = self._stderr.fileno()
        # Read without seeking: the process writes at the same position of the same file.
        before = os.fstat(descriptor).st_size
        if not self.is_alive:
            return ""
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_WAIT_S
        while time.monotonic() < deadline and os.fstat(descriptor).st_size == before:
            time.sleep(_STACK_LOOK_S)
        time.sleep(_STACK_LOOK_S)  # It is printed in pieces.
        return os.pread(descriptor, os.fstat(descriptor).st_size - before, before).decode(errors="replace")

    def kill(self) -> None:
        """Ends the process and all it started; may be called twice."""
        self._process.kill()
        end_family(self._family)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read_line(self, deadline: float | None) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._received:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                self.kill()
                raise WorkerTimeoutError("the worker did not answer in time")
            wait_s = _LOOK_INTERVAL_S if remaining is None else min(remaining, _LOOK_INTERVAL_S)
            has_ended = self._process.poll() is not None
            ready, _, _ = select.select([descriptor], [], [], 0 if has_ended else wait_s)
            if not ready:
                if has_ended:
                    raise self._died()
                continue
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise self._died()
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _died(self) -> WorkerDiedError:
        # The pipe can close a moment before the exit status is there, or be closed by a process that lives on.
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            message = "worker closed its output and was killed"
        else:
            message = f"worker died ({_exit_text(code)})"
        if self._stderr.closed:  # It was killed from another thread while this one waited for its answer.
            return WorkerDiedError(message, "")
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _KEPT_STDERR_BYTES))
        detail = self._stderr.read().decode(errors="replace")
        self.kill()
        return WorkerDiedError(message, detail)


def _without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _CREDENTIALS}


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else "unknown"
    likely = ", likely memory" if -code == signal.SIGKILL else ""
    return f"signal {-code}, {name}{likely}"
