"""Models that look at the process around them, or change it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable

import torch
from stack import Block, Stack
from torch import nn


def telling(names: list[str]) -> nn.Module:
    """No model, but an error that says which environment variables are there."""
    raise RuntimeError(", ".join(f"{name} is {'there' if name in os.environ else 'absent'}" for name in names))


def showing(names: list[str]) -> nn.Module:
    """No model, but an error that says what environment variables hold."""
    raise RuntimeError(", ".join(f"{name}={os.environ.get(name)}" for name in names))


def _change_what_can_be_put_back() -> None:
    os.environ["LEFT_BEHIND"] = "yes"
    os.environ.pop("HOME", None)
    os.chdir("/")
    sys.path.insert(0, "/nowhere")
    signal.signal(signal.SIGUSR1, lambda *_: None)
    sys.excepthook = lambda *_: None
    gc.disable()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_float32_matmul_precision("medium")


def _hook_every_module() -> None:
    nn.modules.module.register_module_forward_hook(lambda *_: None)


_CHANGES: dict[str, Callable[[], None]] = {
    "settings": _change_what_can_be_put_back,
    "hooks": _hook_every_module,
}


class Meddling(Stack):
    """Changes its process at 8 samples, and at fewer fails in a process that is not as it was."""

    def __init__(self, how: str) -> None:
        super().__init__(Block() for _ in range(2))
        self.how = how

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 8:
            _CHANGES[self.how]()
        elif "LEFT_BEHIND" in os.environ or torch.get_default_dtype() is not torch.float32:
            raise AssertionError("the process is not as it was")
        return super().forward(x, target)


def meddling(how: str) -> nn.Module:
    return Meddling(how)
