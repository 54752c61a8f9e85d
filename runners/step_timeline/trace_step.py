"""Traces one step under each of a few policies: when each kept tensor is born and last used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from runners.inspection.call_trace import tensors_in
from runners.proof.randomness import seed_everything
from runners.rig import Rig
from runners.step_timeline.block_owners import BlockOwners
from runners.step_timeline.module_calls import call_targets, watched_calls
from runners.step_timeline.read_step import RecordedStep, read_step
from runners.step_timeline.records import StepTimeline, StepTimelineSpec, TensorKind, TracedStep
from runners.step_timeline.save_log import SaveLog
from runners.step_timeline.saved_tensors import kept_views, watched_saves
from runners.step_timeline.step_parts import StepParts
from runners.step_timeline.step_recording import StepRecorder, StepRecording
from runners.worker_session import WorkerSession
from search_spaces.policy import RecomputePolicy

_TRACED = "traced step"


def trace_step(spec: StepTimelineSpec, session: WorkerSession) -> StepTimeline:
    """Takes one step under each policy and follows what it keeps.

    Raises:
        Exception: Whatever the model raises. Only that a further policy does not fit the device is part of the answer.
    """
    steps = [_trace(spec.policy, spec, session)]
    for policy in spec.also:
        try:
            steps.append(_trace(policy, spec, session))
        except (RuntimeError, MemoryError) as error:
            if not session.device.is_out_of_memory(error):
                raise
            steps.append(TracedStep(policy=policy, failure="it does not fit the device's memory"))
    return StepTimeline(steps=tuple(steps))


def _trace(policy: RecomputePolicy, spec: StepTimelineSpec, session: WorkerSession) -> TracedStep:
    seed_everything(spec.workload.seed)
    others_bytes = session.settle()
    micro_batch = session.batches(policy)[0]
    rig = Rig(session.workload, spec.workload, session.device)
    owners = BlockOwners(rig.model, spec.shape, (policy, *spec.also))
    step = _record(rig, policy, micro_batch, owners, session, others_bytes)
    traced = read_step(step, num_blocks=spec.num_blocks)
    with rig.placed(policy):
        start = time.perf_counter()
        rig.step.run([micro_batch])
        session.device.synchronize()
        untraced_s = time.perf_counter() - start
    return traced.model_copy(update={"step_time_s": untraced_s})


def _record(
    rig: Rig,
    policy: RecomputePolicy,
    micro_batch: Mapping[str, Any],
    owners: BlockOwners,
    session: WorkerSession,
    others_bytes: int,
) -> RecordedStep:
    """Two steps are recorded and the second is read: optimizer states exist then, and what the first left is known."""
    recorder = StepRecorder(session.device.torch_device.type, rig.phases)
    log = SaveLog(recorder, owners.region_heads(policy))
    targets = call_targets(rig.model) | owners.unit_targets()
    with watched_calls(targets, log.calling), rig.placed(policy):
        before_bytes = session.device.live_bytes() - others_bytes
        with recorder.recording(), rig.phases.watched_by(recorder):
            rig.step.run([micro_batch])
            session.device.synchronize()
            log.forget()
            with watched_saves(log), recorder.interval(_TRACED):
                rig.step.run([micro_batch])
                session.device.synchronize()
    recording = recorder.step_recording(_TRACED)
    (interval,) = recording.trace.named(_TRACED)
    before = [size for time_ns, size, _ in recording.trace.changes if time_ns < interval.start_ns]
    measured = recording.trace.since(interval.start_ns)
    return RecordedStep(
        policy=policy,
        recording=StepRecording(measured, recording.points, recording.births),
        log=log,
        parts=StepParts(interval, measured),
        owners=owners,
        kind_of=_kinds(rig, micro_batch),
        start_bytes=before_bytes + sum(before),
    )


def _kinds(rig: Rig, micro_batch: Mapping[str, Any]) -> Callable[[int], TensorKind]:
    """What a storage that was there before the step is, by its address."""
    kinds: dict[int, TensorKind] = {}

    def know(tensors: Iterable[torch.Tensor], kind: TensorKind) -> None:
        for view in kept_views(list(tensors)):
            kinds[view.address] = kind

    know(tensors_in(dict(micro_batch)), TensorKind.INPUT)
    know(rig.model.buffers(), TensorKind.BUFFER)
    know(rig.model.parameters(), TensorKind.PARAMETER)
    return lambda address: kinds.get(address, TensorKind.EXISTING)
