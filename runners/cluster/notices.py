"""Where Ray's own notices go: beside the log, since standard output is for results."""

from __future__ import annotations

from typing import Any

import ray._private.worker as ray_worker


def keep_off_stdout() -> None:
    """Has Ray write what it tells every driver, such as that a node was lost, to standard error.

    It does so on standard output whatever ``log_to_driver`` says (seen in 2.60), by a function without an option for
    it. Without that function nothing is changed. May be called again.
    """
    original: Any = getattr(ray_worker, "print_to_stdstream", None)
    if original is None or hasattr(original, "is_ours"):
        return

    def on_stderr(data: dict[str, Any], *args: Any, **options: Any) -> None:
        original({**data, "is_err": True}, *args, **options)

    on_stderr.is_ours = True  # type: ignore[attr-defined]  # a function takes attributes
    ray_worker.print_to_stdstream = on_stderr
