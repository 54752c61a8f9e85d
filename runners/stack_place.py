"""Reads a stack that `faulthandler` printed: whose code a stuck process stands in."""

from __future__ import annotations

import re
from pathlib import PurePath

from runners.parallel.records import WaitingPlace

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_STACK_START = re.compile(r"^(Current thread|Thread|Stack) ", re.MULTILINE)
#: Parts of torch in which a process waits: collectives, and backward, which waits for them in C++.
_WAITING = ("torch/distributed/", "torch/autograd/graph.py", "torch/nn/parallel/")
#: The worker's own wait for a request.
_IDLE = "runners/worker_main.py"


def read_place(printed: str) -> WaitingPlace:
    """The place of the last stack in what a process printed.

    Args:
        printed: Standard error of the process, most recent call first, as `faulthandler` writes it.
    """
    starts = [match.start() for match in _STACK_START.finditer(printed)]
    if not starts:
        return WaitingPlace()
    frames = [match.groupdict() for match in map(_FRAME.match, printed[starts[-1] :].splitlines()) if match]
    if not frames:
        return WaitingPlace()
    innermost = frames[0]
    place = f"{PurePath(innermost['file']).name} line {innermost['line']}, {innermost['function']}"
    return WaitingPlace(place=place, waits=_is_waiting([frame["file"] for frame in frames]))


def _is_waiting(files: list[str]) -> bool:
    """A process waits where nothing but torch was called since it entered a collective or backward."""
    for file in files:
        path = file.replace("\\", "/")
        if any(part in path for part in _WAITING) or path.endswith(_IDLE):
            return True
        if "/torch/" not in path:
            return False
    return False
