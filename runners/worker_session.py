"""What the trials of one workload share in one process: the device, the data, and what is proven of the plain model."""

from __future__ import annotations

import gc
import threading
from typing import Any

import psutil

from runners.devices.base import Device
from runners.devices.registry import open_device
from runners.parallel.ranks import ALONE, Ranks, data_place
from runners.process_state import ProcessState
from runners.proof.prover import Prover
from runners.proof.randomness import seed_everything
from runners.rig import Rig
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.load import load_workload
from search_spaces.policy import RecomputePolicy


class WorkerSession:
    """Serves one workload; made anew for another one."""

    def __init__(
        self, spec: WorkloadSpec, *, global_batch_size: int, device: Device | None = None, ranks: Ranks = ALONE
    ) -> None:
        self.spec = spec
        self.ranks = ranks
        self.device: Device = device or open_device(spec.device)
        self.workload: Workload = load_workload(spec)
        self.prover = Prover(self.workload, spec, self.device, global_batch_size=global_batch_size, ranks=ranks)
        self.live_bytes = 0
        self._num_threads = threading.active_count()
        # After the modules of the user's code were run, which happens once in a process.
        self._process_state = ProcessState()

    def rig(self, policy: RecomputePolicy | None) -> Rig:
        """A fresh model under the policy, divided over the ranks."""
        return Rig(self.workload, self.spec, self.device, policy, ranks=self.ranks)

    def settle(self) -> int:
        """Bytes alive now that are not the coming trial's."""
        self.device.release_cached_memory()
        # What is alive now is left out of every later walk through the objects, most of which are the libraries': on a
        # small model those walks took longer than the trial.
        gc.freeze()
        self.live_bytes = self.device.live_bytes()
        return self.live_bytes

    def unclean_reason(self) -> str | None:
        self.device.release_cached_memory()
        leaked = self.device.live_bytes() - self.live_bytes
        if leaked > 0:
            return f"the trial left {leaked} bytes alive"
        if threading.active_count() > self._num_threads:
            return f"the trial left {threading.active_count() - self._num_threads} threads"
        children = psutil.Process().children()
        if children:
            return f"the trial left {len(children)} child processes"
        changed = self._process_state.restore()
        return None if changed is None else f"the trial changed {changed}"

    def batches(self, policy: RecomputePolicy, sequence_length: int | None = None) -> list[dict[str, Any]]:
        """The micro-batches of one optimizer step under the policy that are this rank's, the same ones each time.

        Args:
            sequence_length: Of them all; None is the longest.
        """
        batches = []
        own, num_parts = data_place(self.spec.strategy, self.ranks)
        for part in range(policy.batch.gradient_accumulation_steps):
            seed_everything(self.spec.seed + part * num_parts + own + 1)
            batches.append(self.workload.make_batch(policy.batch.micro_batch_size, sequence_length))
        return batches

    def steps(self, policy: RecomputePolicy) -> list[list[dict[str, Any]]]:
        """The micro-batches of one optimizer step at each sequence length, the longest first."""
        return [self.batches(policy), *self.shorter_steps(policy)]

    def shorter_steps(self, policy: RecomputePolicy) -> list[list[dict[str, Any]]]:
        """The same without the longest."""
        return [self.batches(policy, length) for length in reversed(self.spec.shorter_sequence_lengths)]
