"""What a proof runs: the user's workload in one precision, on one device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from runners.devices.base import Device
from runners.parallel.ranks import ALONE, Ranks, data_place, rank_seed
from runners.proof.randomness import seed_everything
from runners.rig import Rig
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.load import load_workload
from search_spaces.policy import RecomputePolicy


@dataclass(frozen=True)
class ProofSetup:
    """Builds models and batches that are the same each time."""

    workload: Workload
    spec: WorkloadSpec
    device: Device
    ranks: Ranks = ALONE

    def fresh_rig(self, divided_for: RecomputePolicy | None = None) -> Rig:
        """The model as given, without a policy, divided over the ranks as that policy would divide it."""
        return Rig(self.workload, self.spec, self.device, ranks=self.ranks, divided_for=divided_for)

    def alone(self) -> ProofSetup:
        """The same in one process, which holds the whole model and all samples."""
        return replace(self, ranks=ALONE)

    def seed(self) -> None:
        """Each rank has a stream of its own, as in training."""
        seed_everything(rank_seed(self.spec.seed, self.ranks))

    def seed_alike(self) -> None:
        """The same stream on all ranks."""
        seed_everything(self.spec.seed)

    def own_batch(self, num_samples: int, *, step: int, part: int, sequence_length: int | None) -> dict[str, Any]:
        """A batch of this rank's own: no two ranks have the same samples, unless they train one model together."""
        own, num_parts = self.data_place
        part = part * num_parts + own
        return self.batch(num_samples, step=step, part=part, sequence_length=sequence_length)

    def batch(self, num_samples: int, *, step: int, part: int, sequence_length: int | None = None) -> dict[str, Any]:
        """The same for the same arguments, on all ranks; of the longest sequences unless told otherwise."""
        seed_everything(self.spec.seed + 1009 * step + part + 1)
        return self.workload.make_batch(num_samples, sequence_length)

    @property
    def data_place(self) -> tuple[int, int]:
        """Which of how many parts of the samples are this rank's."""
        return data_place(self.spec.strategy, self.ranks)

    def extreme_lengths(self) -> tuple[int | None, ...]:
        """The longest sequence length and, of several, the shortest."""
        return (self.spec.sequence_length, *self.spec.shorter_sequence_lengths[:1])

    def lowest_dtype(self, rig: Rig) -> torch.dtype:
        """The coarsest type that takes part in a step."""
        dtypes = {p.dtype for p in rig.model.parameters() if p.is_floating_point()}
        if self.spec.autocast is not None:
            dtypes.add(getattr(torch, self.spec.autocast))
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)

    @property
    def is_low_precision(self) -> bool:
        return self.spec.autocast is not None or self.spec.dtype in ("bfloat16", "float16")

    def in_float32(self) -> ProofSetup:
        """The same workload with parameters, data and arithmetic in single precision."""
        spec = self.spec.model_copy(update={"dtype": "float32", "autocast": None})
        return replace(self, workload=load_workload(spec), spec=spec)
