"""The model of a real study: micro-batches of chosen sizes end their trial in a way of their own.

It stands beside the search file. What it finds in its own stack tells it what is done with it, so that a driver can be
killed exactly then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

WIDTH = 8
_FOLDER = Path(__file__).parent
#: Parts of the names of files of the product that are running then.
_MOMENTS = {
    "baseline build": "runners/trial_run.py",
    "verify": "runners/proof/prover.py",
    "measure": "runners/measure/step_time.py",
    "playoff": "runners/playoff_run.py",
}


def _segfault() -> None:
    ctypes.string_at(0)


def _leave_at_once() -> None:
    print("my last words", file=sys.stderr, flush=True)
    os._exit(7)


def _deadlock_with_child() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _ask_for_terabytes() -> None:
    torch.empty(10**13)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise RuntimeError("this size is not for me")


def _fill_the_node() -> None:
    """Touches memory until somebody ends it; a child of its own must not outlive it."""
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    kept = []
    while len(kept) < 40:
        kept.append(torch.ones(2**26))
        time.sleep(0.1)
    raise AssertionError("nobody guards this node")


FAULTS = {
    "segfault": _segfault,
    "exit": _leave_at_once,
    "deadlock with child": _deadlock_with_child,
    "terabytes": _ask_for_terabytes,
    "kill": _die,
    "raise": _raise,
    "fill": _fill_the_node,
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mlp(x)
        return out


class Faulty(nn.Module):
    """Blocks in a row and the mean squared distance to a target."""

    def __init__(self, faults: dict[str, str]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.faults = faults

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kill_driver_if_asked()
        fault = self.faults.get(str(x.shape[0]))
        if fault is not None and not isinstance(x, FakeTensor):
            FAULTS[fault]()
        for block in self.blocks:
            x = block(x)
        return (x - target).square().mean()


def build(faults: dict[str, str] | None = None) -> nn.Module:
    kill_driver_if_asked()
    return Faulty(faults or {})


def make_batch(micro_batch_size: int) -> dict[str, torch.Tensor]:
    return {name: torch.randn(micro_batch_size, WIDTH) for name in ("x", "target")}


def kill_driver_if_asked() -> None:
    """Once, where the file ``kill`` names the driver and the moment."""
    file = _FOLDER / "kill"
    if not file.exists():
        return
    pid, moment = file.read_text().split(" ", 1)
    frame = sys._getframe()
    while frame is not None:
        if _MOMENTS[moment] in frame.f_code.co_filename:
            file.rename(_FOLDER / "killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            return
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
