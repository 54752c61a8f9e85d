"""What a trial can leave changed in its process besides memory, threads and children, so that the next begins alike.

Most of it is put back. What a model has replaced inside a library is not looked for.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer


@dataclass(frozen=True)
class Setting:
    """One thing that holds for the whole process.

    Attributes:
        write: Puts a value back that `read` gave; None where nothing can.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None


def _attribute(name: str, owner: Any, attribute: str) -> Setting:
    return Setting(name, lambda: getattr(owner, attribute), lambda value: setattr(owner, attribute, value))


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _set_path(entries: list[str]) -> None:
    sys.path[:] = entries


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        # None stands for a handler that is not Python's, which no trial could replace unseen and put back.
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _anomaly_detection() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _library_hooks() -> list[int]:
    """Hooks of all modules and optimizers, as many as there are in each of torch's registries."""
    registries = [
        registry
        for library in (torch_module, torch_optimizer)
        for name, registry in sorted(vars(library).items())
        if name.startswith("_global_") and name.endswith(("hooks", "hooks_always_called"))
    ]
    return [len(registry) for registry in registries]


def _modes() -> tuple[int, int]:
    """How many modes stand around every function and every operator; torch has no public way to ask."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


_SETTINGS = (
    Setting("the environment", lambda: dict(os.environ), _set_environment),
    Setting("the current folder", os.getcwd, os.chdir),
    Setting("the import path", lambda: list(sys.path), _set_path),
    Setting("signal handlers", _handlers, _set_handlers),
    _attribute("sys.excepthook", sys, "excepthook"),
    _attribute("threading.excepthook", threading, "excepthook"),
    Setting("the trace function", sys.gettrace, sys.settrace),
    Setting("the profile function", sys.getprofile, sys.setprofile),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    Setting("thresholds of garbage collection", gc.get_threshold, lambda counts: gc.set_threshold(*counts)),
    Setting("the default type", torch.get_default_dtype, torch.set_default_dtype),
    Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("determinism", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Setting("the precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting("anomaly detection", _anomaly_detection, lambda flags: torch.autograd.set_detect_anomaly(*flags)),
    _attribute("cudnn.enabled", torch.backends.cudnn, "enabled"),
    _attribute("cudnn.benchmark", torch.backends.cudnn, "benchmark"),
    _attribute("cudnn.deterministic", torch.backends.cudnn, "deterministic"),
    Setting("fused attention", torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    Setting(
        "memory-efficient attention",
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    Setting("plain attention", torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    Setting("the default device", torch.get_default_device, None),
    Setting("the number of threads between operators", torch.get_num_interop_threads, None),
    Setting("inference mode", torch.is_inference_mode_enabled, None),
    Setting("hooks of all modules or optimizers", _library_hooks, None),
    Setting("modes around torch's functions", _modes, None),
)


class ProcessState:
    """How the process stands when this is made."""

    def __init__(self) -> None:
        self._before = [setting.read() for setting in _SETTINGS]

    def restore(self) -> str | None:
        """Puts back what changed since; names the first thing that could not be, None where all is as before."""
        stuck = None
        for setting, before in zip(_SETTINGS, self._before, strict=True):
            if setting.read() == before:
                continue
            if setting.write is not None:
                setting.write(before)
            if setting.read() != before:
                stuck = stuck or setting.name
        return stuck
