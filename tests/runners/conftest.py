"""How tests of this room run one trial of a small model from the folder `models`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runners.trial import MeasurementSpec, TrialResult, TrialSpec, WorkloadSpec
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

# Behind everything else, so that no folder of tests shadows a package.
sys.path.append(str(Path(__file__).parent))

MODELS = Path(__file__).parent / "models"
UNITS = (("attention", "attn"), ("mlp", "mlp"))


@dataclass
class TrialMaker:
    """Trials of one model of the folder, with the shortest measurement there is."""

    factory: str
    args: dict[str, Any] = field(default_factory=dict)
    batch: str | None = None
    global_batch_size: int = 8
    num_blocks: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    blocks: str = "blocks"

    def workload(self) -> WorkloadSpec:
        return WorkloadSpec(
            model_factory=self.factory,
            model_args=self.args,
            batch_factory=self.batch,
            base_dir=str(MODELS),
            device="cpu",
            **self.options,
        )

    def policy(self, regions: Sequence[Region] | str, *, micro: int, rng: bool = True) -> RecomputePolicy:
        if isinstance(regions, str):
            regions = () if regions == "none" else (Region(0, self.num_blocks - 1, regions),)
        shape = BatchShape.split(global_batch_size=self.global_batch_size, micro_batch_size=micro)
        placement = BlockListPlacement(self.blocks, self.num_blocks, UNITS, tuple(regions))
        return RecomputePolicy(shape, (placement,), rng)

    def spec(
        self,
        regions: Sequence[Region] | str = "none",
        *,
        micro: int | None = None,
        rng: bool = True,
        number: int = 0,
        **options: Any,
    ) -> TrialSpec:
        measurement = MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1)
        return TrialSpec(
            trial_number=number,
            policy=self.policy(regions, micro=micro or self.global_batch_size, rng=rng),
            workload=self.workload(),
            **{"measurement": measurement, **options},
        )

    def run(self, regions: Sequence[Region] | str = "none", **options: Any) -> TrialResult:
        """One trial in this process, by a worker of its own."""
        from runners.worker import TrialWorker

        return TrialWorker().run(self.spec(regions, **options))


@pytest.fixture
def trials() -> type[TrialMaker]:
    return TrialMaker
