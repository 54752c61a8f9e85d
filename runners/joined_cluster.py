"""A running Ray cluster that the user names. Nothing else makes this program join one."""

from __future__ import annotations

import logging
import socket

import ray

from runners.base import RunnerError

#: Seconds until an address that nobody answers on is given up.
_CONNECT_TIMEOUT_S = 5.0


def join_cluster(address: str) -> None:
    """Connects; `ray.shutdown` ends the connection, and the cluster goes on.

    Raises:
        RunnerError: Nobody answers at the address, or whoever does refuses.
    """
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise RunnerError(
            f"runner.ray_address is {address}, and the cluster there refused the connection "
            f"({' '.join(str(error).split())[:200]}); if it asks for a token, as one does that `ray start` begins "
            "where ~/.ray/auth_token is, set RAY_AUTH_MODE=token"
        ) from error


def _check_reachable(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise RunnerError(
            f"runner.ray_address is {address}, but nobody answers there ({error}); start the cluster or leave it out "
            "for a private local one"
        ) from error
