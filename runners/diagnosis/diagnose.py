"""Measures what memory and time of a plain step are made of."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from runners.diagnosis.habits import observe_habits
from runners.diagnosis.peak_split import split_peak
from runners.diagnosis.places import Places
from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.diagnosis.unit_costs import UnitCostMeter, measure_sizes
from runners.proof.randomness import seed_everything
from runners.rig import Rig
from runners.worker_session import WorkerSession
from search_spaces.policy import BatchShape, RecomputePolicy


def diagnose(spec: DiagnosisSpec, session: WorkerSession) -> Diagnosis:
    """Runs plain steps at the largest micro-batch that runs, and tells apart who holds what.

    Raises:
        Exception: Whatever the model raises where it runs at no size.
    """
    for index, shape in enumerate(spec.choices.batches):
        try:
            return _diagnose(spec, session, spec.choices.batches[index:])
        except Exception as error:
            is_last = shape is spec.choices.batches[-1]
            if is_last or not session.device.is_out_of_memory(error):
                raise
        gc.collect()  # Outside of the handler, where nothing holds on to the frames that ran out of memory.
    raise AssertionError("choices hold at least one size")


def _diagnose(spec: DiagnosisSpec, session: WorkerSession, shapes: Sequence[BatchShape]) -> Diagnosis:
    session.settle()
    rig = Rig(session.workload, spec.workload, session.device)
    places = Places(rig.model, spec.choices.shape)
    meter = UnitCostMeter(rig, session, places, spec.choices)
    if spec.only_unit_costs:
        costs, left_out = measure_sizes(meter, shapes, spec.budget_s)
        return Diagnosis(unit_costs=tuple(costs), sizes_left_out=tuple(left_out))
    plain = RecomputePolicy(shapes[0])
    split = split_peak(rig, session, places, plain)
    # Afterwards, so that what a first forward pass leaves behind is there.
    seed_everything(spec.workload.seed)
    habits = observe_habits(rig, places, session.batches(plain)[0], session.device)
    kept_bytes = meter.kept_bytes(shapes[0])
    floors = tuple(split_peak(rig, session, places, policy) for policy in spec.floors)
    costs, left_out = measure_sizes(meter, shapes, spec.budget_s)
    return Diagnosis(
        plain=split,
        floors=floors,
        habits=habits,
        kept_bytes=kept_bytes,
        unit_costs=tuple(costs),
        sizes_left_out=tuple(left_out),
    )
