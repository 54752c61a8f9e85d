"""Models and batches that take more than they should, and give it back or not."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from stack import WIDTH, Block, Stack
from torch import nn

#: More than any machine has.
_TOO_MANY_ELEMENTS = 10**13


def huge_at_four(micro_batch_size: int) -> dict[str, Any]:
    if micro_batch_size == 4:
        torch.empty(_TOO_MANY_ELEMENTS)
    return {name: torch.randn(micro_batch_size, WIDTH) for name in ("x", "target")}


class Failing(Stack):
    """Fails in the last block's forward from the given micro-batch on."""

    def __init__(self, how: str, from_samples: int) -> None:
        super().__init__(Block() for _ in range(2))
        self.how = how
        self.from_samples = from_samples

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if x.shape[0] >= self.from_samples:
            FAILURES[self.how]()
        return super().forward(x, target)


def failing(how: str, from_samples: int = 4) -> nn.Module:
    return Failing(how, from_samples)


def _raise_runtime_error() -> None:
    raise RuntimeError("I have no memory of this place: can't allocate memory of it")


def _raise_memory_error() -> None:
    raise MemoryError("the host has no more")


def _raise_typed() -> None:
    raise torch.OutOfMemoryError("the device has no more")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _loop() -> None:
    while True:
        time.sleep(0.05)


def _segfault() -> None:
    ctypes.string_at(0)


def _print() -> None:
    print('{"result": "not an answer"}', flush=True)
    os.write(1, b'{"result": "not an answer"}\n')
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)


def _read_input() -> None:
    assert sys.stdin.read() == ""


def _fork_and_die() -> None:
    print("my last words", file=sys.stderr, flush=True)
    if os.fork() == 0:
        time.sleep(600)
    os._exit(9)


def _leave_detached_child() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def _loop_with_child() -> None:
    _leave_detached_child()
    _loop()


def _leave_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


_KEPT: list[torch.Tensor] = []


def _keep_tensor() -> None:
    _KEPT.append(torch.zeros(1000))


FAILURES = {
    "runtime_error": _raise_runtime_error,
    "memory_error": _raise_memory_error,
    "typed": _raise_typed,
    "allocator": lambda: torch.empty(_TOO_MANY_ELEMENTS),
    "kill": _kill,
    "segfault": _segfault,
    "fork_and_die": _fork_and_die,
    "loop": _loop,
    "child_loop": _loop_with_child,
    "print": _print,
    "read": _read_input,
    "detached_child": _leave_detached_child,
    "thread": _leave_thread,
    "tensor": _keep_tensor,
    "nothing": lambda: None,
}


class FitsOnlyRecomputed(Stack):
    """At four samples the plain model takes more than there is; under a policy it does not."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if x.shape[0] >= 4 and "forward" not in vars(self.blocks[0]):
            torch.empty(_TOO_MANY_ELEMENTS)
        return super().forward(x, target)


def fits_only_recomputed() -> nn.Module:
    return FitsOnlyRecomputed(Block() for _ in range(2))


class Waiting(Stack):
    """Says that it began, and goes on once it may."""

    def __init__(self, folder: str, number: int) -> None:
        super().__init__(Block() for _ in range(2))
        self.folder = Path(folder)
        self.number = number

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        (self.folder / f"began-{self.number}").touch()
        while not (self.folder / "go").exists():
            time.sleep(0.05)
        return super().forward(x, target)


def waiting(folder: str, number: int) -> nn.Module:
    return Waiting(folder, number)


class Sleepy(Stack):
    """Takes 20 ms per forward pass, however many samples there are."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return super().forward(x, target)


def sleepy() -> nn.Module:
    return Sleepy(Block() for _ in range(2))
