"""Studies of a model with 12 blocks in which every kind of placement was measured, without having run them."""

from __future__ import annotations

from typing import Any

from built_results import build_results

from runners.trial import ModelInspection, TrialResult, TrialStatus, Verdict, Verification
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.export.base import ExportContext, Exporter
from tuner.export.context import context_of
from tuner.export.versions import choose_version
from tuner.objective import Objective
from tuner.results import StudyResults, TrialRecord

NUM_BLOCKS = 12
UNITS = (("attention", "attn"), ("mlp", "mlp"))
SHAPE = ModelShape(1000, (BlockList("transformer.h", "GPT2Block", NUM_BLOCKS, UNITS),))
MIB = 2**20

#: One policy for each kind of placement; the last two columns are about every block under either RNG handling.
REGIONS: dict[str, tuple[Region, ...]] = {
    "none": (),
    "block": (Region(0, 11, "block"),),
    "block<n": (Region(0, 4, "block"),),
    "block%k first": tuple(Region(i, i, "block") for i in range(0, 12, 3)),
    "block%k last": tuple(Region(i, i, "block") for i in range(2, 12, 3)),
    "block{S}": (Region(1, 2, "block"), Region(5, 5, "block"), Region(9, 11, "block")),
    "attn": (Region(0, 11, "attention"),),
    "mlp": (Region(0, 11, "mlp"),),
    "attn+mlp": (Region(0, 11, "attention+mlp"),),
    "mix": (Region(0, 3, "block"), Region(4, 7, "mlp"), Region(8, 9, "attention")),
    "segment": (Region(0, 11, "segment", 3),),
    "rng on": (Region(0, 11, "block"),),
    "rng off": (Region(0, 11, "block"),),
}


def policy(column: str, *, preserve_rng_state: bool = True, micro_batch_size: int = 2) -> RecomputePolicy:
    batch = BatchShape.split(global_batch_size=8, micro_batch_size=micro_batch_size)
    placement = BlockListPlacement("transformer.h", NUM_BLOCKS, UNITS, REGIONS[column])
    return RecomputePolicy(batch, (placement,), preserve_rng_state).canonical()


def measured(number: int, of: RecomputePolicy, **changes: Any) -> TrialResult:
    return TrialResult(
        trial_number=number,
        policy=of,
        status=TrialStatus.COMPLETED,
        samples_per_second=8.0 - number / 10,
        tokens_per_second=(8.0 - number / 10) * 128,
        step_time_s=8 / (8.0 - number / 10),
        step_time_spread_s=0.001,
        num_steps=5,
        peak_memory_bytes=(100 - number) * MIB,
        verification=Verification(verdict=Verdict.MATCH, num_steps=3),
        device="CPU",
        **changes,
    )


def study_of(*results: TrialResult) -> StudyResults:
    return build_results(
        study="gpt2-12l",
        search={"model": {"factory": "huggingface:gpt2"}, "batch": {"global_batch_size": 8, "sequence_length": 128}},
        inspection=ModelInspection(
            shape=SHAPE, model_class="GPT2LMHeadModel", tokens_per_sample=128, device_memory_bytes=10**9, environment={}
        ),
        environment={"python": "3.11.7", "torch": "2.13.0"},
        results=results,
        baseline_key=policy("none").key,
        objective=Objective(memory_cap_bytes=200 * MIB),
    )


def record(study: StudyResults, number: int = 0) -> TrialRecord:
    found = study.trial(number)
    assert found is not None
    return found


def context(exporter: Exporter, version: str, *, through_python: bool = False) -> ExportContext:
    return context_of(study_of(), choose_version(exporter, version), through_python=through_python)
