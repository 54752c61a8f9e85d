"""Traced steps of the simulated model, written down by hand: two blocks, a plain step and one of a policy."""

from __future__ import annotations

from typing import Any

from simulation import INSPECTION, measure, policy

from runners.replay_runner import ReplayRunner
from runners.step_timeline.records import (
    KeptGroup,
    KeptTensor,
    MemoryCurve,
    PhaseSpan,
    Saver,
    StepTimeline,
    StepTimelineSpec,
    TensorKind,
    TracedStep,
)
from search_spaces.policy import RecomputePolicy

MIB = 2**20


def saver(module: str, saved_s: float, used_s: float | None, **changes: Any) -> Saver:
    return Saver(
        **{
            "module": module,
            "operator": "aten::mm",
            "node": "MmBackward0",
            "phase": "forward",
            "shape": (2, 16),
            "dtype": "float32",
            "saved_s": saved_s,
            "used_s": used_s,
            **changes,
        }
    )


def tensor(block: str | None, unit: str | None, *savers: Saver, **changes: Any) -> KeptTensor:
    return KeptTensor(
        **{
            "kind": TensorKind.ACTIVATION,
            "block": block,
            "unit": unit,
            "num_bytes": MIB,
            "birth_s": savers[0].saved_s - 0.001 if savers else 0.04,
            "born_in": "forward",
            "made_by": "h: aten::mm",
            "savers": savers,
            "last_use_s": savers[0].used_s if savers else None,
            "freed_s": 0.09,
            **changes,
        }
    )


def group(block: str | None, unit: str | None, kept: int, rebuilt: int = 0) -> KeptGroup:
    """Tensors of one MiB each."""
    return KeptGroup(
        block=block,
        unit=unit,
        num_tensors=kept,
        kept_bytes=kept * MIB,
        at_own_backward_bytes=kept * MIB,
        num_recomputed=rebuilt,
        recomputed_bytes=rebuilt * MIB,
    )


def plain_step(placed: RecomputePolicy | None = None) -> TracedStep:
    """10 MiB before the step, 8 MiB kept and one held when backward starts at 50 ms, and a peak of 20 MiB at 60 ms."""
    return TracedStep(
        policy=placed or policy("none"),
        step_time_s=0.08,
        traced_step_time_s=0.1,
        start_bytes=10 * MIB,
        backward_start_bytes=19 * MIB,
        peak_memory_bytes=20 * MIB,
        peak_s=0.06,
        phases=(
            PhaseSpan(phase="forward", start_s=0.0, end_s=0.05),
            PhaseSpan(phase="backward", start_s=0.05, end_s=0.09),
            PhaseSpan(phase="optimizer", start_s=0.09, end_s=0.1),
        ),
        curve=MemoryCurve(
            times_s=(0.0, 0.05, 0.06, 0.09, 0.1),
            allocated_bytes=(10 * MIB, 19 * MIB, 20 * MIB, 10 * MIB, 10 * MIB),
            kept_bytes=(0, 8 * MIB, 8 * MIB, 0, 0),
        ),
        tensors=(
            tensor(None, None, saver("wte", 0.002, 0.089)),
            tensor("h.0", "attention", saver("h.0.attn.q", 0.01, 0.08), saver("h.0.attn.k", 0.011, 0.079)),
            tensor("h.0", None, saver("h.0.norm", 0.009, 0.085, operator="aten::native_layer_norm")),
            tensor("h.0", "mlp", saver("h.0.mlp", 0.02, 0.07), born_in="recompute"),
            tensor("h.0", "mlp", saver("h.0.mlp", 0.02, None), kind=TensorKind.PARAMETER, birth_s=None, made_by=None),
            tensor(None, None, saver("", 0.045, 0.055), freed_s=None),
            tensor(None, None, kind=TensorKind.HELD),
            tensor(None, None, kind=TensorKind.HELD, num_bytes=4),
        ),
        groups=(
            group("h.0", "attention", 1),
            group("h.0", None, 1),
            group("h.0", "mlp", 0, rebuilt=1),
            group("h.1", "attention", 2),
            group("h.1", "mlp", 2, rebuilt=3),
            group(None, None, 2),
        ),
        num_held=2,
        held_bytes=MIB,
    )


class TracingRunner(ReplayRunner):
    """Answers every policy with the plain step's trace.

    Attributes:
        asked: What it was asked.
        refused: Keys of policies that do not fit.
        deadly: Keys of policies that take the worker with them.
    """

    def __init__(self, *, refused: tuple[str, ...] = (), deadly: tuple[str, ...] = ()) -> None:
        super().__init__(measure, inspection=INSPECTION)
        self.asked: list[StepTimelineSpec] = []
        self.refused = refused
        self.deadly = deadly

    def step_timeline(self, spec: StepTimelineSpec) -> StepTimeline:
        self.asked.append(spec)
        policies = (spec.policy, *spec.also)
        if any(each.key in self.deadly for each in policies):
            return StepTimeline(failure="the worker died (signal 9)")
        return StepTimeline(steps=tuple(map(self._step, policies)))

    def _step(self, placed: RecomputePolicy) -> TracedStep:
        if placed.key in self.refused:
            return TracedStep(policy=placed, failure="it does not fit the device's memory")
        return plain_step(placed)
