"""How tests of this room diagnose a small model of the folder `models`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.trial import InspectionSpec, WorkloadSpec
from runners.worker import TrialWorker
from search_spaces.choices import SearchChoices
from search_spaces.policy import BLOCK, BatchShape, BlockListPlacement, RecomputePolicy, Region

UNITS = {"attention": "attn", "mlp": "mlp"}
MODELS = Path(__file__).parent.parent / "models"


@dataclass(frozen=True)
class Subject:
    """A model to be diagnosed, with what a search could choose."""

    workload: WorkloadSpec
    choices: SearchChoices

    def every_block(self, micro_batch_size: int) -> RecomputePolicy:
        shape = BatchShape.split(global_batch_size=self.choices.global_batch_size, micro_batch_size=micro_batch_size)
        placement = tuple(
            BlockListPlacement(b.path, b.num_blocks, b.units, (Region(0, b.num_blocks - 1, BLOCK),))
            for b in self.choices.shape.block_lists
        )
        return RecomputePolicy(shape, placement, self.choices.rng_choices[0])

    def diagnose(self, **options: Any) -> Diagnosis:
        spec = DiagnosisSpec(workload=self.workload, choices=self.choices, **options)
        return TrialWorker().diagnosis(spec)


@pytest.fixture
def subject() -> Callable[..., Subject]:
    """Makes a subject from a factory's name; options of the workload and of the choices by name."""

    def make(
        factory: str,
        args: dict[str, Any] | None = None,
        *,
        sizes: tuple[int, ...] = (8,),
        global_batch_size: int = 8,
        workload: dict[str, Any] | None = None,
        **choices: Any,
    ) -> Subject:
        spec = WorkloadSpec(
            model_factory=factory,
            model_args=args or {},
            base_dir=str(MODELS),
            device="cpu",
            **{"optimizer_name": "sgd", **(workload or {})},
        )
        inspection = TrialWorker().inspect(
            InspectionSpec(workload=spec, blocks=("blocks",), units=UNITS, micro_batch_size=2)
        )
        actions = ("none", "attention", "mlp", "attention+mlp", "block", "segment")
        options = {"actions": actions, "preserve_rng_state": False, "segment_sizes": (2,), **choices}
        return Subject(spec, SearchChoices(inspection.shape, global_batch_size, sizes, **options))

    return make
