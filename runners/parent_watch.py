"""Ends a process when the one that started it is gone, also where nobody collects what is left of a dead process.

In a container whose first process collects nothing, a dead Ray node stays in the table of processes, and Ray takes it
for alive. Without this, its trials would go on beside those of the search that comes next.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LOOK_INTERVAL_S = 1.0


def end_with_parent(clean_up: Callable[[], None]) -> None:
    """From now on this process ends within seconds after its parent.

    Args:
        clean_up: Called before, from a thread of its own.
    """
    parent = os.getppid()

    def watch() -> None:
        # An orphan has another parent at once, whether or not the dead one was collected.
        while os.getppid() == parent:
            time.sleep(_LOOK_INTERVAL_S)
        try:
            clean_up()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
