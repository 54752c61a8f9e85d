"""Studies of a real model on a real private Ray cluster, and whatever they leave running."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faulty_model
import psutil
import yaml

_TIMEOUT_S = 1200.0
#: Linux's prctl option by which orphans of this process's children become its own children (linux/prctl.h).
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds that processes have for ending after their driver. Ray's own agents, which do nothing any more, first try for
#: a minute to tell a head that is gone.
_ENDING_S = 120.0
#: Seconds that trials have for ending after a driver that was killed.
_STOPPING_S = 15.0
EXIT_DONE = 0
#: In the command lines of what runs trials, and of what trials start here.
_OF_TRIALS = ("runners.worker_main", "NodeAgent", "sleep")

SEARCH: dict[str, Any] = {
    "study": "simulated",
    "model": {"factory": "faulty_model.py:build"},
    "batch": {"global_batch_size": 4, "factory": "faulty_model.py:make_batch"},
    "memory_cap": "200MiB",
    "placement": {"actions": ["none", "block"], "blocks": ["blocks"]},
    "search": {"num_trials": 40, "sampler": "grid"},
    "measurement": {"warmup_steps": 0, "min_steps": 2, "max_steps": 2},
    "runner": {"device": "cpu", "resources_per_trial": {"CPU": 1}, "max_parallel_trials": 1},
}


@dataclass
class RealStudy:
    """A folder with a search file, the model beside it, and the processes of its drivers."""

    folder: Path

    def write(self, *, storage: str | None = None, **sections: Mapping[str, Any]) -> None:
        """The search file, some of whose sections have further entries."""
        self.folder.mkdir()
        shutil.copy(faulty_model.__file__, self.folder)
        search = {**SEARCH, **{name: {**SEARCH.get(name, {}), **entries} for name, entries in sections.items()}}
        search["storage"] = storage
        (self.folder / "search.yaml").write_text(yaml.safe_dump(search))

    def start(self, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        become_subreaper()
        with (self.folder / "driver.out").open("wb") as out, (self.folder / "driver.err").open("wb") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "tuner", "run", "search.yaml", *options],
                cwd=self.folder,
                stdout=out,
                stderr=err,
                env={**os.environ, **(environment or {})},
            )

    def run(self, *options: str, environment: Mapping[str, str] | None = None) -> int:
        """One driver to its end; its exit code."""
        driver = self.start(*options, environment=environment)
        try:
            return driver.wait(_TIMEOUT_S)
        finally:
            driver.kill()
            driver.wait()

    def wait_until_logged(self, driver: subprocess.Popen[bytes], text: str) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while text not in self.logged:
            assert driver.poll() is None, f"the driver ended before it said {text!r}: {self.logged}"
            assert time.monotonic() < deadline, f"the driver never said {text!r}: {self.logged}"
            time.sleep(0.1)

    @property
    def logged(self) -> str:
        return (self.folder / "driver.err").read_text()

    @property
    def results(self) -> dict[str, Any]:
        results: dict[str, Any] = json.loads((self.folder / "runs" / "simulated" / "results.json").read_text())
        return results


def become_subreaper() -> None:
    """Whatever a driver leaves becomes a child of this process, and is found as such."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def left_working(before: set[psutil.Process]) -> list[psutil.Process]:
    """Processes of trials, or that watch over them, that were not there before and are still there after a while."""
    return _left(before, _STOPPING_S, lambda process: any(part in _command(process) for part in _OF_TRIALS))


def left_running(before: set[psutil.Process]) -> list[psutil.Process]:
    """Processes below this one that were not there before and do not end by themselves."""
    return _left(before, _ENDING_S, lambda process: True)


def _left(
    before: set[psutil.Process], seconds: float, is_meant: Callable[[psutil.Process], bool]
) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while True:
        _collect_orphans()
        children = set(psutil.Process().children(recursive=True)) - before
        left = [process for process in children if _runs(process) and is_meant(process)]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.2)


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _collect_orphans() -> None:
    """As the system's first process does: what Ray starts looks whether the process that started it is still there."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)


def running() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
