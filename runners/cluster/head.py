"""The head of a Ray cluster, seen from a driver: whether it still answers."""

from __future__ import annotations

import socket
import time

from runners.base import RunnerError

#: Seconds that a head may be silent, for a busy machine or one that is restarted. After 60 s Ray ends the process that
#: asked it for anything, in the middle of whatever that does.
_PATIENCE_S = 20.0
_CONNECT_TIMEOUT_S = 5.0
_PAUSE_S = 0.5


class RayHead:
    """The head that this process is connected to.

    Args:
        address: Host and port.
        shown: The cluster as the user knows it.

    Attributes:
        is_gone: It has not answered for so long that nothing more may be asked of it.
    """

    def __init__(self, address: str, shown: str) -> None:
        self._shown = shown
        host, _, port = address.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self.is_gone = False

    def raise_if_gone(self) -> None:
        """To be called before Ray is asked for what only the head knows.

        Raises:
            RunnerError: It does not answer.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while not self.is_gone:
            try:
                socket.create_connection(self._address, timeout=_CONNECT_TIMEOUT_S).close()
            except OSError:
                if time.monotonic() >= deadline:
                    self.is_gone = True
                    break
                time.sleep(_PAUSE_S)
            else:
                return
        raise RunnerError(
            f"the head of the Ray cluster ({self._shown}) does not answer any more; start the cluster again if it is "
            "yours, then go on with --resume"
        )
