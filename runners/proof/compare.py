"""How far two short training runs are apart, in one figure that means the same for every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from runners.proof.training_record import TrainingRecord

#: Relative error up to which two runs count as the same where the baseline repeats itself exactly. Wide enough for
#: another order of summation, narrow against real faults: a wrong dropout mask, a stale buffer or a mean of means
#: shows at 1e-2 and above.
BASE_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
#: A tensor's error is never measured against less than this share of what the overall gradient size would give it.
#: Some gradients are zero but for rounding (a key projection's bias); against their own size noise looks like error.
_FLOOR_SHARE = 1e-2
#: The baseline's own noise, measured once, is taken this many times as the floor of the tolerance.
_NOISE_FACTOR = 3.0


@dataclass(frozen=True)
class Difference:
    """The largest disagreement of two runs.

    Attributes:
        relative_error: 0 where all agree; infinity where a tensor is missing, or not finite, on one side.
        worst_tensor: Where it is; None where all agree.
        reason: What it means, in one sentence; None where all agree to the last bit.
    """

    relative_error: float
    worst_tensor: str | None
    reason: str | None


def tolerance(dtype: torch.dtype, baseline_noise: float) -> float:
    """Largest relative error that is still the same training, given the baseline's distance from itself."""
    return max(BASE_TOLERANCE.get(dtype, BASE_TOLERANCE[torch.float32]), _NOISE_FACTOR * baseline_noise)


def compare_records(
    baseline: TrainingRecord, candidate: TrainingRecord, *, skip_integer_buffers: bool = False
) -> Difference:
    """The largest relative error over losses, gradients and buffers.

    The error of a tensor is the norm of the difference over the baseline tensor's norm, which is floored at a share of
    the overall gradient norm.

    Args:
        skip_integer_buffers: Leaves out counters, which an evenly divided batch advances more often.
    """
    differences = [
        *_missing_gradients(baseline, candidate),
        *_loss_differences(baseline, candidate),
        *_gradient_differences(baseline, candidate),
        *_buffer_differences(baseline, candidate, skip_integer_buffers),
    ]
    # Of equally bad ones the first is named: a missing gradient explains what it causes elsewhere.
    return max(differences, key=lambda difference: difference.relative_error, default=Difference(0.0, None, None))


def compare_streams(baseline: TrainingRecord, candidate: TrainingRecord) -> Difference | None:
    """The first stream of random numbers that stands elsewhere after the steps; None where all agree."""
    for name, digest in baseline.random_streams.items():
        if candidate.random_streams.get(name) != digest:
            reason = f"the {name} stream of random numbers stands elsewhere after the steps"
            return Difference(math.inf, f"{name} stream", reason)
    return None


def first_not_finite(record: TrainingRecord) -> str | None:
    """What of a run is not a finite number, in words; None where all is finite."""
    for step, loss in enumerate(record.losses):
        if not math.isfinite(loss):
            return f"the loss of step {step + 1} is {loss}"
    for entry in record.gradients.names():
        if not np.isfinite(record.gradients.read(entry)).all():
            step_index, name = entry.split(" ", 1)
            return f"the gradient of {name} in step {int(step_index) + 1} is not finite"
    return None


def _loss_differences(baseline: TrainingRecord, candidate: TrainingRecord) -> Iterable[Difference]:
    for step, (ours, theirs) in enumerate(zip(baseline.losses, candidate.losses, strict=True), start=1):
        if not (math.isfinite(ours) and math.isfinite(theirs)):
            yield Difference(math.inf, "loss", f"the loss of step {step} is {theirs} instead of {ours}")
        elif ours != theirs:
            error = abs(ours - theirs) / max(abs(ours), 1e-8)
            yield Difference(error, "loss", f"the loss of step {step} is {theirs:.6g} instead of {ours:.6g}")


def _missing_gradients(baseline: TrainingRecord, candidate: TrainingRecord) -> Iterable[Difference]:
    ours, theirs = set(baseline.gradients.names()), set(candidate.gradients.names())
    for entry in sorted(ours - theirs):
        name = entry.split(" ", 1)[1]
        yield Difference(math.inf, name, f"{name} had a gradient in the baseline and has none now")
    for entry in sorted(theirs - ours):
        name = entry.split(" ", 1)[1]
        yield Difference(math.inf, name, f"{name} had no gradient in the baseline and has one now")


def _gradient_differences(baseline: TrainingRecord, candidate: TrainingRecord) -> Iterable[Difference]:
    shared = [name for name in baseline.gradients.names() if name in set(candidate.gradients.names())]
    by_step: dict[str, list[str]] = {}
    for entry in shared:
        by_step.setdefault(entry.split(" ", 1)[0], []).append(entry)
    for step_name, entries in by_step.items():
        norms = {entry: float(np.linalg.norm(baseline.gradients.read(entry).astype(np.float64))) for entry in entries}
        sizes = {entry: baseline.gradients.read(entry).size for entry in entries}
        overall = math.sqrt(sum(norm**2 for norm in norms.values()))
        total_size = max(sum(sizes.values()), 1)
        for entry in entries:
            ours, theirs = baseline.gradients.read(entry), candidate.gradients.read(entry)
            if np.array_equal(ours, theirs):
                continue
            name = entry.split(" ", 1)[1]
            floor = _FLOOR_SHARE * overall * math.sqrt(sizes[entry] / total_size)
            error = _relative(ours, theirs, max(norms[entry], floor))
            yield Difference(
                error, name, f"the gradient of {name} in step {int(step_name) + 1} differs by {error:.2g} of its size"
            )


def _buffer_differences(
    baseline: TrainingRecord, candidate: TrainingRecord, skip_integer: bool
) -> Iterable[Difference]:
    for name in baseline.buffers.names():
        if skip_integer and name in baseline.integer_buffers:
            continue
        ours = baseline.buffers.read(name)
        theirs = candidate.buffers.read(name) if name in candidate.buffers.names() else np.zeros(0, np.float32)
        if ours.size != theirs.size:
            yield Difference(math.inf, name, f"buffer {name} has {theirs.size} elements instead of {ours.size}")
        elif not np.array_equal(ours, theirs, equal_nan=True):
            norm = float(np.linalg.norm(ours.astype(np.float64)))
            error = _relative(ours, theirs, max(norm, 1e-8))
            text = (
                f"buffer {name} is {theirs[0]:g} instead of {ours[0]:g}"
                if ours.size == 1
                else (f"buffer {name} differs by {error:.2g} of its size")
            )
            yield Difference(error, name, text)


def _relative(ours: npt.NDArray[np.floating], theirs: npt.NDArray[np.floating], scale: float) -> float:
    difference = float(np.linalg.norm(ours.astype(np.float64) - theirs.astype(np.float64)))
    if not math.isfinite(difference):
        return math.inf
    return difference / scale if scale > 0 else math.inf
