"""Arguments of a command as a shell array, one flag a line, for launch scripts to source or to copy."""

from __future__ import annotations

from collections.abc import Iterable


def shell_array(arguments: Iterable[str]) -> str:
    """``RECOMPUTE_ARGS=(`` with one argument a line; a launch script passes it on as ``"${RECOMPUTE_ARGS[@]}"``."""
    return "RECOMPUTE_ARGS=(\n" + "".join(f"    {argument}\n" for argument in arguments) + ")\n"
