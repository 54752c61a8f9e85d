"""A Ray cluster of our own on this machine, which nobody else can reach."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import ray._private.ray_constants as ray_constants

from runners.base import RunnerError
from runners.cluster.notices import keep_off_stdout

logger = logging.getLogger(__name__)

#: Variables that Ray reads when it starts a cluster. It would run workers at a lower priority than the training that
#: they stand for (niceness 15), report its use, though a search reports to nobody but its user, and some releases hide
#: every device from a trial that asks for none, whatever the user made visible.
_ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
#: Set to 0 it makes Ray's servers listen on the loopback address alone, which they do unasked on systems where Ray has
#: no clusters of several machines. On Linux they would listen on every interface, and no argument changes that.
_SEVERAL_MACHINES_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
_LOOPBACK_ADDRESSES = ("127.0.0.1", "::1")


def start_private_cluster() -> None:
    """Starts a cluster and connects to it; `ray.shutdown` ends it.

    Its servers listen on the loopback address and ask for a token that only this process and those that it starts know.
    Where that cannot be had, a warning says so.

    Raises:
        RunnerError: It did not come up.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Ray would write a token to a file in the home folder, readable for all where the umask is the usual one. It reads
    # a token once per process, so this one stays.
    os.environ.setdefault(_TOKEN_VARIABLE, secrets.token_hex(32))
    with _on_loopback_only(), _one_line_if_late():
        keep_off_stdout()
        ray.init(
            # "local" always starts a new cluster: neither RAY_ADDRESS nor a left-over address file is looked at.
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    _warn_of_open_doors()


@contextmanager
def _on_loopback_only() -> Iterator[None]:
    """The variable is for the processes that Ray starts; this one has read it already, when Ray was imported."""
    variable, constant = os.environ.get(_SEVERAL_MACHINES_VARIABLE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_SEVERAL_MACHINES_VARIABLE] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if variable is None:
            del os.environ[_SEVERAL_MACHINES_VARIABLE]
        else:
            os.environ[_SEVERAL_MACHINES_VARIABLE] = variable


@contextmanager
def _one_line_if_late() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Ray raises a bare one where its processes are not up in time, as on a machine that is busy with much else.
        ray.shutdown()
        raise RunnerError(
            f"the private Ray cluster did not come up: {' '.join(str(error).split())[:200].rstrip('.')}; it needs "
            "room in /tmp or RAY_TMPDIR, and a machine that is not busy with much else; then try again"
        ) from error


def _warn_of_open_doors() -> None:
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray leaves it unannotated
    if address not in _LOOPBACK_ADDRESSES:
        logger.warning(
            "Ray %s listens on %s, not on the loopback address alone; other machines can reach the search's cluster "
            "unless a firewall keeps them off",
            ray.__version__,
            address,
        )
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        logger.warning(
            "Ray %s asks for no token, so every user of this machine can run programs in your name while the search "
            "runs; remove RAY_AUTH_MODE from the environment, or update Ray where it is not set",
            ray.__version__,
        )
