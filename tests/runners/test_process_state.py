from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from runners.process_state import ProcessState


@pytest.fixture
def before() -> Iterator[ProcessState]:
    state = ProcessState()
    yield state
    assert state.restore() is None


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], Any]]] = {
    "environment": (lambda: os.environ.update(LEFT="1"), lambda: os.environ.get("LEFT")),
    "variable removed": (lambda: os.environ.pop("PATH"), lambda: os.environ.get("PATH")),
    "folder": (lambda: os.chdir("/"), os.getcwd),
    "import path": (lambda: sys.path.insert(0, "/nowhere"), lambda: list(sys.path)),
    "signal handler": (
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGUSR1),
    ),
    "excepthook": (lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook),
    "thread excepthook": (lambda: setattr(threading, "excepthook", print), lambda: threading.excepthook),
    "profile": (lambda: sys.setprofile(lambda *_: None), sys.getprofile),
    "recursion": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "gc": (gc.disable, gc.isenabled),
    "gc thresholds": (lambda: gc.set_threshold(7), gc.get_threshold),
    "default type": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "anomaly detection": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "cudnn": (lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
    "attention": (lambda: torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.flash_sdp_enabled),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_trial_changed_is_put_back(before: ProcessState, name: str) -> None:
    change, read = CHANGES[name]
    value = read()
    change()
    assert read() != value
    assert before.restore() is None
    assert read() == value


@pytest.mark.slow
def test_determinism_is_put_back(before: ProcessState) -> None:
    torch.use_deterministic_algorithms(True)  # loads torch's compiler
    assert before.restore() is None
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_was_changed_twice_and_together_is_put_back(before: ProcessState) -> None:
    torch.set_default_dtype(torch.float64)
    os.environ["LEFT"] = "1"
    os.environ["LEFT"] = "2"
    assert before.restore() is None
    assert (torch.get_default_dtype(), os.environ.get("LEFT")) == (torch.float32, None)


def test_a_hook_of_all_modules_stays_and_is_named(before: ProcessState) -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert before.restore() == "hooks of all modules or optimizers"
    handle.remove()


def test_a_hook_of_all_optimizers_stays_and_is_named(before: ProcessState) -> None:
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    assert before.restore() == "hooks of all modules or optimizers"
    handle.remove()


def test_a_default_device_stays_and_is_named(before: ProcessState) -> None:
    torch.set_default_device("meta")
    assert before.restore() == "the default device"
    torch.set_default_device(None)


def test_inference_mode_stays_and_is_named(before: ProcessState) -> None:
    with torch.inference_mode():
        assert before.restore() == "inference mode"
