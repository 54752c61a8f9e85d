"""How far two short training runs are apart, in one figure that means the same for every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from runners.proof.training_record import TrainingRecord

#: Relative error up to which two runs count as the same where the baseline repeats itself exactly. Wide enough for
#: another order of summation, narrow against real faults: a wrong dropout mask or a mean of means shows at 1e-1.
BASE_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
#: A tensor's error is never measured against less than this share of what the overall gradient size would give it.
#: Some gradients are zero but for rounding (a key projection's bias); against their own size noise looks like error.
_FLOOR_SHARE = 1e-2
#: Recompute runs the same kernels on the same numbers, so it has no other order of summation to be excused with. A
#: buffer that moves slowly between forward and rebuild shows at 1e-2 only, which bfloat16's tolerance would hide.
_SAME_KERNELS_SHARE = 0.1
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


def recompute_tolerance(dtype: torch.dtype, baseline_noise: float) -> float:
    """Largest relative error of a rebuilt step that is still the same training.

    Args:
        baseline_noise: The plain model's distance from itself when repeated.
    """
    return max(_SAME_KERNELS_SHARE * split_tolerance(dtype), _NOISE_FACTOR * baseline_noise)


def split_tolerance(dtype: torch.dtype) -> float:
    """Largest relative error of a divided batch that is still the same training: it sums in another order."""
    return BASE_TOLERANCE.get(dtype, BASE_TOLERANCE[torch.float32])


def compare_records(
    baseline: TrainingRecord, candidate: TrainingRecord, *, skip_integer_buffers: bool = False
) -> Difference:
    """The largest relative error over losses, gradients and buffers.

    The error of a tensor is the norm of the difference over the baseline tensor's norm; for gradients and losses that
    norm is floored at a share of the step's overall gradient norm. (The terms of a loss may cancel to almost nothing;
    what is left is rounding, and the gradients say what it trains.)

    Args:
        skip_integer_buffers: Leaves out counters, which an evenly divided batch advances more often.
    """
    norms = _gradient_norms(baseline)
    differences = [
        *_missing_gradients(baseline, candidate),
        *_loss_differences(baseline, candidate, norms),
        *_gradient_differences(baseline, candidate, norms),
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


def _gradient_norms(record: TrainingRecord) -> dict[int, dict[str, float]]:
    """Norm of each gradient by step and parameter."""
    norms: dict[int, dict[str, float]] = {}
    for entry in record.gradients.names():
        step, name = entry.split(" ", 1)
        values = record.gradients.read(entry).astype(np.float64)
        norms.setdefault(int(step), {})[name] = float(np.linalg.norm(values))
    return norms


def _overall(norms: Mapping[str, float]) -> float:
    return math.sqrt(sum(norm**2 for norm in norms.values()))


def _loss_differences(
    baseline: TrainingRecord, candidate: TrainingRecord, norms: Mapping[int, Mapping[str, float]]
) -> Iterable[Difference]:
    for step, (ours, theirs) in enumerate(zip(baseline.losses, candidate.losses, strict=True)):
        if not (math.isfinite(ours) and math.isfinite(theirs)):
            yield Difference(math.inf, "loss", f"the loss of step {step + 1} is {theirs} instead of {ours}")
        elif ours != theirs:
            floor = _FLOOR_SHARE * _overall(norms.get(step, {}))
            error = abs(ours - theirs) / max(abs(ours), floor, 1e-8)
            yield Difference(error, "loss", f"the loss of step {step + 1} is {theirs:.6g} instead of {ours:.6g}")


def _missing_gradients(baseline: TrainingRecord, candidate: TrainingRecord) -> Iterable[Difference]:
    ours, theirs = set(baseline.gradients.names()), set(candidate.gradients.names())
    for entry in sorted(ours - theirs):
        name = entry.split(" ", 1)[1]
        yield Difference(math.inf, name, f"{name} had a gradient in the baseline and has none now")
    for entry in sorted(theirs - ours):
        name = entry.split(" ", 1)[1]
        yield Difference(math.inf, name, f"{name} had no gradient in the baseline and has one now")


def _gradient_differences(
    baseline: TrainingRecord, candidate: TrainingRecord, norms: Mapping[int, Mapping[str, float]]
) -> Iterable[Difference]:
    candidate_entries = set(candidate.gradients.names())
    for step, step_norms in norms.items():
        shared = [name for name in step_norms if f"{step} {name}" in candidate_entries]
        sizes = {name: baseline.gradients.read(f"{step} {name}").size for name in shared}
        overall = _overall({name: step_norms[name] for name in shared})
        total_size = max(sum(sizes.values()), 1)
        for name in shared:
            ours = baseline.gradients.read(f"{step} {name}")
            theirs = candidate.gradients.read(f"{step} {name}")
            if np.array_equal(ours, theirs):
                continue
            floor = _FLOOR_SHARE * overall * math.sqrt(sizes[name] / total_size)
            error = _relative(ours, theirs, max(step_norms[name], floor))
            yield Difference(
                error, name, f"the gradient of {name} in step {step + 1} differs by {error:.2g} of its size"
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
