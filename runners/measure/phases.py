"""The parts of a training step, and a switch through which whoever measures can watch them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch


class Phase(str, enum.Enum):
    """A part of one optimizer step. Recompute runs inside backward and is counted apart from it."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"


class PhaseWatcher(Protocol):
    """Watches phases begin and end; forward and backward come once per micro-batch, recompute once per region."""

    def watching(self, phase: Phase) -> AbstractContextManager[None]:
        """Entered for the length of the phase."""


class PhaseSwitch:
    """Passes phases on to the watcher of the moment, if there is one.

    The recompute regions of a model report here (it is their ``RecomputeObserver``), so the watcher can change between
    steps without placing the policy anew.
    """

    def __init__(self) -> None:
        self._watcher: PhaseWatcher | None = None
        self._depth = 0
        self.last_recomputed_region: str | None = None
        #: Bytes that offloaded blocks have copied to the host, in all steps so far.
        self.host_bytes = 0
        #: Called with each such copy.
        self.on_host_copy: Callable[[torch.Tensor], None] | None = None

    @contextmanager
    def watched_by(self, watcher: PhaseWatcher) -> Iterator[None]:
        """Within the context every phase goes to this watcher."""
        before, self._watcher = self._watcher, watcher
        try:
            yield
        finally:
            self._watcher = before

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        return nullcontext() if self._watcher is None else self._watcher.watching(phase)

    def copied_to_host(self, copied: torch.Tensor) -> None:
        """Called by an offloaded block with each copy that it makes."""
        self.host_bytes += copied.nbytes
        if self.on_host_copy is not None:
            self.on_host_copy(copied)

    @contextmanager
    def recomputing(self, region_name: str) -> Iterator[None]:
        """Called by a region around its rebuild; a region rebuilt inside another's rebuild is counted once."""
        self.last_recomputed_region = region_name
        self._depth += 1
        try:
            with self.phase(Phase.RECOMPUTE) if self._depth == 1 else nullcontext():
                yield
        finally:
            self._depth -= 1
