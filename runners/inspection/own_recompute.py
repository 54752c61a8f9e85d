"""Whether a model calls activation checkpointing itself, found by watching it run, without changing anything."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.utils.checkpoint
from torch import nn

#: Names of the functions that begin a recompute region, in the files below.
_FUNCTIONS = ("checkpoint", "checkpoint_wrapper", "checkpoint_sequential", "_checkpoint_without_reentrant_generator")
#: Ends of the files that hold such functions: torch's own, DeepSpeed's and FairScale's.
_FILES = (
    torch.utils.checkpoint.__file__,
    "deepspeed/runtime/activation_checkpointing/checkpointing.py",
    "fairscale/nn/checkpoint/checkpoint_activations.py",
)
#: How transformers' models tell whether they recompute by themselves, the newer name first.
_SWITCHES = ("is_activation_checkpointing", "is_gradient_checkpointing")


@dataclass
class RecomputeWatch:
    """Whether a recompute region began while it was watched."""

    found: bool = False


@contextmanager
def watch_for_recompute(on_region: Callable[[types.FrameType], None] | None = None) -> Iterator[RecomputeWatch]:
    """Watches every Python call of this thread within the context; slow, so use it for one forward pass.

    Args:
        on_region: Told of the frame in which each region begins; None ends the watch with the first one.
    """
    watch = RecomputeWatch()
    outer = sys.getprofile()

    def look(frame: types.FrameType, event: Any, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in _FUNCTIONS and frame.f_code.co_filename.endswith(_FILES):
            watch.found = True
            if on_region is None:
                sys.setprofile(outer)  # Nothing more to learn, and torch imports a good deal at its first region.
            else:
                on_region(frame)
        if outer is not None:
            outer(frame, event, argument)

    sys.setprofile(look)
    try:
        yield watch
    finally:
        sys.setprofile(outer)


def is_switched_on(model: nn.Module) -> bool:
    """True where a model of transformers has its own activation checkpointing enabled."""
    for module in model.modules():
        # Asked of the class first: reading the older name warns where the newer one exists (transformers 5.24).
        switch = next((name for name in _SWITCHES if hasattr(type(module), name)), None)
        if switch is not None and getattr(module, switch) is True:
            return True
    return False
