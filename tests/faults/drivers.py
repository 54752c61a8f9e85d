"""Drivers of a simulated study, each a process of its own, forked from one that has loaded everything already."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from kill_points import KillPoints

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["driver_preload"])
_TIMEOUT_S = 1200.0
#: Version of the header of Linux's call capset, and the number of 32-bit words that it takes then (capset(2)).
_CAPSET_VERSION, _CAPSET_WORDS = 0x20080522, 6


@dataclass(frozen=True)
class KillPoint:
    """Where a driver gets a signal.

    Attributes:
        site: A function, as `KillPoints` names it.
        occurrence: Of entering it, from 1.
    """

    site: str
    occurrence: int
    number: signal.Signals

    def __str__(self) -> str:
        return f"{self.number.name} at {self.site}, time {self.occurrence}"


@dataclass(frozen=True)
class Ended:
    """How a driver ended; negative codes are signals."""

    code: int
    said: str
    logged: str


@dataclass
class Driver:
    """`tune` with these arguments in a folder.

    Attributes:
        trial_s: Real seconds that a simulated trial takes.
        counts_file: Where to write how often each function was entered.
        output: Stem of the files that take what it prints; None is one in the folder.
        obeys_modes: Permissions of files hold for it, also where the system's administrator runs the tests.
    """

    folder: Path
    arguments: tuple[str, ...]
    kill_point: KillPoint | None = None
    trial_s: float = 0.0
    counts_file: Path | None = None
    output: Path | None = None
    obeys_modes: bool = False
    _process: ForkServerProcess = field(init=False)

    def __post_init__(self) -> None:
        stem = self.output or self.folder / "driver"
        self._out, self._err = (stem.with_name(f"{stem.name}.{name}") for name in ("out", "err"))
        self._process = _CONTEXT.Process(
            target=_drive,
            args=(self.folder, self.arguments, self.kill_point, self.trial_s, self.counts_file),
            kwargs={"printed": (self._out, self._err), "obeys_modes": self.obeys_modes},
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def wait_until_logged(self, text: str) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not (self._err.exists() and text in self._err.read_text()):
            assert self._process.is_alive(), f"the driver ended before it said {text!r}: {self.end().logged}"
            assert time.monotonic() < deadline, f"the driver never said {text!r}: {self._err.read_text()}"
            time.sleep(0.02)

    def logged(self) -> str:
        return self._err.read_text()

    def end(self, timeout_s: float = _TIMEOUT_S) -> Ended:
        """Waits for the end.

        Raises:
            AssertionError: It hangs; it is killed then.
        """
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise AssertionError(f"the driver hangs: {self._err.read_text()}")
        assert self._process.exitcode is not None
        return Ended(self._process.exitcode, self._out.read_text(), self._err.read_text())


def _drive(
    folder: Path,
    arguments: tuple[str, ...],
    kill_point: KillPoint | None,
    trial_s: float,
    counts_file: Path | None,
    *,
    printed: tuple[Path, Path],
    obeys_modes: bool,
) -> None:
    import driver_preload

    os.setsid()
    for descriptor, file in zip((1, 2), printed, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if obeys_modes:
        give_up_privileges()
    os.chdir(folder)
    sys.argv = ["tune", *arguments]
    if kill_point is None and counts_file is None:
        driver_preload.run_tune(trial_s)
        return
    points = (
        KillPoints(None, 0, 0)
        if kill_point is None
        else KillPoints(kill_point.site, kill_point.occurrence, kill_point.number)
    )
    points.watch()
    try:
        driver_preload.run_tune(trial_s)
    finally:
        sys.setprofile(None)
        if counts_file is not None:
            counts_file.write_text(json.dumps(points.counts))


def give_up_privileges() -> None:
    """From now on the administrator is a user like any other, who may still read their own files."""
    header = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0)
    nothing = (ctypes.c_uint32 * _CAPSET_WORDS)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")
