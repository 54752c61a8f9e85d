"""A running Ray cluster that the user names. Nothing else makes this program join one."""

from __future__ import annotations

import logging
import os
import socket

import ray
from ray.exceptions import RayError

from runners.base import RunnerError
from runners.cluster.notices import keep_off_stdout

#: Seconds until an address that nobody answers on is given up.
_CONNECT_TIMEOUT_S = 5.0
#: What opens a connection of HTTP/2, which gRPC is spoken over: the client's preface and its settings, none here
#: (RFC 9113, sections 3.4 and 6.5). The answer of any server begins with a frame of settings.
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEADER_BYTES, _FRAME_TYPE_AT, _SETTINGS = 9, 3, 4


def join_cluster(address: str) -> None:
    """Connects; `ray.shutdown` ends the connection, and the cluster goes on.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.

    Raises:
        RunnerError: Nobody answers at the address, or whoever does refuses.
    """
    if address != "auto":
        _check_answers(address)
    keep_off_stdout()
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    # Other releases of Ray or Python there are a RuntimeError, a client that is not installed a ValueError.
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        what = "no cluster of this machine lets us in" if address == "auto" else "the cluster there lets nobody in"
        raise RunnerError(
            f"runner.ray_address is {_shown(address)}, but {what} ({' '.join(str(error).split())[:300]}); start one "
            "with `ray start`, or name another address; if it asks for a token, as one does that `ray start` begins "
            "where ~/.ray/auth_token is, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN where there is no such file"
        ) from error


def _check_answers(address: str) -> None:
    """Finds out in seconds what Ray would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition("@")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S) as connection:
            speaks_grpc = _is_encrypted() or _begins_with_settings(connection)
    except OSError as error:
        raise RunnerError(
            f"runner.ray_address is {_shown(address)}, but nobody answers there ({error}); start the cluster or leave "
            "it out for a private local one"
        ) from error
    if not speaks_grpc:
        raise RunnerError(
            f"runner.ray_address is {_shown(address)}, but what answers there is no Ray cluster; name its port for "
            "drivers, which is 6379 unless `ray start --port` says otherwise"
        )


def _begins_with_settings(connection: socket.socket) -> bool:
    connection.sendall(_HTTP2_GREETING)
    header = b""
    while len(header) < _FRAME_HEADER_BYTES:
        more = connection.recv(_FRAME_HEADER_BYTES - len(header))
        if not more:
            return False
        header += more
    return header[_FRAME_TYPE_AT] == _SETTINGS


def _is_encrypted() -> bool:
    """Whether Ray is told to speak TLS; the certificates are its own affair."""
    return os.environ.get("RAY_USE_TLS", "0").lower() not in ("0", "false", "")


def _shown(address: str) -> str:
    """The address without credentials."""
    return f"***@{address.rpartition('@')[2]}" if "@" in address else address
