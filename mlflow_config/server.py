"""Runs MLflow's own server on a study's store, on this machine only unless asked otherwise."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import IO

from mlflow_config.database_driver import with_installed_driver
from mlflow_config.errors import TrackingError
from mlflow_config.settings import TrackingSettings

LOCAL_HOST = "127.0.0.1"

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
_LAST_OUTPUT_BYTES = 8192
#: A database's error ends with the statement and a link, two lines after what went wrong.
_LAST_LINES = 3
_POLL_S = 0.1
#: Variables of MLflow's server that would send the page to another store or to another address than we print.
_REDIRECTING_VARIABLES = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_READ_REPLICA_BACKEND_STORE_URI",
    "MLFLOW_REGISTRY_STORE_URI",
    "MLFLOW_ARTIFACTS_ONLY",
    "MLFLOW_STATIC_PREFIX",
)
_LOOPBACK_HOSTS = (LOCAL_HOST, "localhost", "::1")
#: No background jobs are needed to look at results, and nothing is reported to MLflow's makers.
_SERVER_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def serve(
    settings: TrackingSettings,
    *,
    host: str = LOCAL_HOST,
    port: int = 5000,
    announce: Callable[[str], None] = print,
) -> None:
    """Serves until Ctrl-C, SIGTERM or the end of the terminal, and then ends the server with its children.

    Args:
        announce: Called once with the address, when the server answers.

    Raises:
        TrackingError: There is no such store, the port is taken, or the server ended by itself.
    """
    with (
        _stop_signals_as_interrupt(),
        contextlib.suppress(KeyboardInterrupt),
        running_server(settings, host=host, port=port) as server,
    ):
        announce(server.address)
        server.process.wait()
        raise TrackingError(f"MLflow's server on {server.address} ended by itself: {server.last_words()}")


@dataclass(frozen=True)
class RunningServer:
    """A server that answers at its address; its output is kept aside."""

    process: subprocess.Popen[bytes]
    address: str
    output: IO[bytes]

    def last_words(self) -> str:
        """The last lines the server printed, as one, and how it ended if it did."""
        # The server writes through the same file position, which must stay where it is.
        size = os.fstat(self.output.fileno()).st_size
        start = max(0, size - _LAST_OUTPUT_BYTES)
        text = os.pread(self.output.fileno(), _LAST_OUTPUT_BYTES, start).decode(errors="replace")
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        words = " | ".join(lines[-_LAST_LINES:]) or "no output"
        code = self.process.poll()
        return words if code is None else f"{words} (exit code {code})"


@contextlib.contextmanager
def running_server(settings: TrackingSettings, *, host: str = LOCAL_HOST, port: int = 5000) -> Iterator[RunningServer]:
    """Runs a server for the length of the ``with`` block, answering from its start. Raises as ``serve`` does."""
    _check_store(settings)
    _check_port(host, port)
    with tempfile.TemporaryFile() as output:
        # A session of its own makes the server and its children one group, which ends as a whole.
        process = subprocess.Popen(
            _command(settings, host, port),
            env=_environment(settings, host, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            server = RunningServer(process, f"http://{_reachable(host)}:{port}", output)
            _wait_until_it_answers(server)
            yield server
        finally:
            _end(process)


def _command(settings: TrackingSettings, host: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "mlflow", "server"]
    command += ["--host", host, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"]
    if settings.artifact_root is not None:
        command += ["--default-artifact-root", settings.artifact_root]
        command += ["--artifacts-destination", settings.artifact_root]
    return command


def _environment(settings: TrackingSettings, host: str, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _REDIRECTING_VARIABLES}
    if host not in _LOOPBACK_HOSTS:
        # MLflow answers 403 to a browser that calls this machine by any name but localhost, unless it is listed.
        own = [f"{name}:{port}" for name in _own_names(host)]
        local = [f"{name}:{port}" for name in (LOCAL_HOST, "localhost", "[::1]")]
        kept.setdefault("MLFLOW_SERVER_ALLOWED_HOSTS", ",".join([*local, *own]))
        kept.setdefault("MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", ",".join(f"http://{name}" for name in own))
    # Every user of the machine sees the arguments of a program, and the address may hold a password.
    return {**kept, **_SERVER_ENVIRONMENT, "MLFLOW_BACKEND_STORE_URI": with_installed_driver(settings.uri)}


def _own_names(host: str) -> list[str]:
    names = {host, socket.gethostname(), socket.getfqdn()}
    with contextlib.suppress(OSError):
        names.update(socket.gethostbyname_ex(socket.gethostname())[2])
    return sorted(f"[{name}]" if ":" in name else name for name in names)


def _check_store(settings: TrackingSettings) -> None:
    if settings.is_server:
        raise TrackingError(
            f"tracking.uri is {settings.shown_uri}, which is a server already; open that address in a browser"
        )
    path = settings.sqlite_path
    if path is not None and not path.is_file():
        raise TrackingError(
            f"there is no tracking store at {path}; a study creates it. Run a study first, or start this from the "
            f"folder that holds its output_dir"
        )


def _check_port(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise TrackingError(f"port is {port}; a number from 1 to 65535 is expected, for example 5000")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise TrackingError(
                f"cannot listen on {host}:{port} ({error.strerror}); an address of this machine and a free port are "
                f"expected. Use another port, or end the program that has this one"
            ) from error


def _reachable(host: str) -> str:
    """The host as a browser on this machine can open it."""
    everywhere = {"0.0.0.0": LOCAL_HOST, "::": "[::1]"}
    return everywhere.get(host, f"[{host}]" if ":" in host else host)


def _wait_until_it_answers(server: RunningServer) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    # Never through a proxy that the environment names for the outside world.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise TrackingError(f"MLflow's server on {server.address} did not start: {server.last_words()}")
        with contextlib.suppress(OSError), opener.open(f"{server.address}/health", timeout=2):
            return
        time.sleep(_POLL_S)
    raise TrackingError(
        f"MLflow's server on {server.address} did not answer within {_START_TIMEOUT_S:.0f} s: {server.last_words()}"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
    finally:
        # Whatever of the group did not obey or outlived its parent; also when an impatient user presses Ctrl-C again.
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _stop_signals_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the server as Ctrl-C does, so that it never outlives us. Main thread only.

    SIGINT, too: a shell starts a command in its background with SIGINT ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
