"""A worker and all that it starts, found by a variable that they carry, whatever session or parent they have."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

#: Its value is made of the namespace of process ids, the keeper's id and start there, and a word of the family's own.
FAMILY_VARIABLE = "RECOMPUTE_TUNER_FAMILY"
#: Place of a process's start among what Linux says of it after its name, in clock ticks since boot (proc_pid_stat(5)).
#: psutil's time of creation moves where the machine's clock is set.
_START_FIELD = 19


def new_family() -> str:
    """A value of the variable for a process that this one is about to start, and to keep an eye on."""
    return f"{_namespace()}/{os.getpid()}/{_start(os.getpid())}/{uuid.uuid4().hex}"


def end_family(family: str) -> None:
    """Kills whoever carries that value."""
    _end(lambda carried: carried == family)


def end_orphans() -> None:
    """Kills families on this machine whose keeper is gone, say because Ray or the system killed it for want of memory.

    Families of other containers are left alone: what their process ids mean is not known here.
    """
    namespace = _namespace()
    if namespace:
        _end(lambda carried: carried.startswith(f"{namespace}/") and not _is_kept(carried))


def _end(is_meant: Callable[[str], bool]) -> None:
    for process in psutil.process_iter(["environ"]):
        carried = (process.info["environ"] or {}).get(FAMILY_VARIABLE)
        if carried is not None and is_meant(carried):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()


def _is_kept(family: str) -> bool:
    """True also where the value is not of this release's form."""
    parts = family.split("/")
    return len(parts) != 4 or not parts[1].isdecimal() or _start(int(parts[1])) == parts[2]


def _namespace() -> str:
    """Empty where the system does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start(pid: int) -> str:
    """When the process began, in a word; empty where there is none."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return said.rpartition(")")[2].split()[_START_FIELD]
