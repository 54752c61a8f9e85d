"""What a trial is worth: its two values, what it breaks, and whether it is feasible. Only this file decides that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runners.trial import TrialResult, TrialStatus, Verdict
from tuner.machine_state import MachineState
from tuner.speed_ratio import Ratio

MEMORY_CONSTRAINT = "memory"
PROOF_CONSTRAINT = "proof"


@dataclass(frozen=True)
class Score:
    """A finished trial in the sampler's terms.

    Attributes:
        values: Throughput, to be maximized, and peak bytes, to be minimized; None where the sampler learns nothing.
        memory_overshoot: Peak over cap, minus one: positive over the cap, negative below it; None without values.
        unproven: A proof is required and there is none, or it failed.
        infeasible_reason: Why the policy is no answer, in one line; None where it is feasible.
    """

    values: tuple[float, float] | None
    memory_overshoot: float | None
    unproven: bool
    infeasible_reason: str | None

    @property
    def feasible(self) -> bool:
        return self.infeasible_reason is None

    @property
    def constraints(self) -> dict[str, float]:
        """Kept where <= 0, always the same ones in the same order; empty where the sampler learns nothing."""
        if self.memory_overshoot is None:
            return {}
        return {MEMORY_CONSTRAINT: self.memory_overshoot, PROOF_CONSTRAINT: float(self.unproven)}


@dataclass(frozen=True)
class Objective:
    """The goal of a study: most throughput with a peak within the cap, by policies proven to train the same model.

    Attributes:
        memory_cap_bytes: A peak of exactly the cap is within it.
        proof_required: False only where the user switched verification off.
        has_reference: Trials interleave a reference; the sampler then learns relative speed, else samples per second.
    """

    memory_cap_bytes: int
    proof_required: bool = True
    has_reference: bool = True

    def score(self, result: TrialResult) -> Score:
        """Settles what each status means.

        ============== ======================= ================= =========================================
        status         sampler sees            feasible          constraints
        ============== ======================= ================= =========================================
        COMPLETED      speed, peak             within the cap    memory: overshoot; proof: 1 where it is
                                               and proven        required and not MATCH, else 0
        OUT_OF_MEMORY  0, at least cap + 1 B   no                the least overshoot it can have; unproven
        all others     nothing (a failure)     no                none
        ============== ======================= ================= =========================================

        An out-of-memory trial has trained no sample, so its throughput is 0, and its peak is known from below: what it
        reached, and more than the cap. A completed trial whose throughput or peak was not measured teaches nothing.
        """
        if result.status is TrialStatus.COMPLETED:
            return self._score_completed(result)
        if result.status is TrialStatus.OUT_OF_MEMORY:
            peak = max(self.memory_cap_bytes + 1, result.peak_memory_bytes or 0)
            return Score((0.0, float(peak)), self._overshoot(peak), self.proof_required, _failure(result))
        return Score(None, None, self.proof_required, _failure(result))

    def _score_completed(self, result: TrialResult) -> Score:
        peak = result.peak_memory_bytes
        unproven = self._is_unproven(result)
        if peak is None or _positive(result.samples_per_second) is None:
            missing = "peak memory" if peak is None else "throughput"
            return Score(None, None, unproven, f"its {missing} was not measured")
        overshoot = self._overshoot(peak)
        reason = _why_infeasible(result, overshoot, unproven)
        speed = _positive(result.relative_speed if self.has_reference else result.samples_per_second)
        if speed is None:
            return Score(None, None, unproven, reason)
        return Score((speed, float(peak)), overshoot, unproven, reason)

    def _overshoot(self, peak_bytes: int) -> float:
        return (peak_bytes - self.memory_cap_bytes) / self.memory_cap_bytes

    def _is_unproven(self, result: TrialResult) -> bool:
        verdict = Verdict.UNVERIFIED if result.verification is None else result.verification.verdict
        return verdict is Verdict.MISMATCH or (self.proof_required and verdict is not Verdict.MATCH)


def _why_infeasible(result: TrialResult, overshoot: float, unproven: bool) -> str | None:
    proof = result.verification
    because = f": {proof.reason}" if proof is not None and proof.reason else ""
    if proof is not None and proof.verdict is Verdict.MISMATCH:
        return f"it trains another model{because}"
    if overshoot > 0:
        return f"its peak is {overshoot:.1%} over the cap"
    return f"it is not proven to train the same model{because}" if unproven else None


@dataclass(frozen=True)
class Speed:
    """Throughput in a unit that is the same for all results ranked together, and its standard error, if known.

    Attributes:
        standard_error: Of the series it comes from.
        state: Of the machine meanwhile; None where no reference tells.
    """

    value: float
    standard_error: float | None
    state: MachineState | None = None

    def over(self, other: Speed) -> Ratio:
        """How many times as fast it is as the other."""
        value = self.value / other.value
        if self.standard_error is None or other.standard_error is None:
            return Ratio(value, None)
        doubt = 0.0 if self.state is None or other.state is None else self.state.doubt(other.state)
        # Standard error of a quotient of independent figures, to first order.
        relative = math.hypot(self.standard_error / self.value, other.standard_error / other.value, doubt)
        return Ratio(value, value * relative)


class MeasuredSpeed(Protocol):
    """What ranking must know of a trial, whether it comes from a worker or from results.json."""

    @property
    def samples_per_second(self) -> float | None: ...
    @property
    def step_time_s(self) -> float | None: ...
    @property
    def step_time_spread_s(self) -> float | None: ...
    @property
    def relative_speed(self) -> float | None: ...
    @property
    def relative_speed_spread(self) -> float | None: ...
    @property
    def reference_step_time_s(self) -> float | None: ...
    @property
    def reference_drift_ratio(self) -> float | None: ...


def ranking_speeds(results: Sequence[MeasuredSpeed]) -> list[Speed | None]:
    """The speed to rank each result by, in the given order; None where it has none.

    Relative speed is what counts, since it does not depend on how busy the machine was. Where one of the measured
    results lacks it, all are ranked by samples per second, as the two do not compare.
    """
    measured = [result for result in results if _positive(result.samples_per_second) is not None]
    if all(_positive(result.relative_speed) is not None for result in measured):
        return [_speed(result.relative_speed, result.relative_speed_spread, _state(result)) for result in results]
    return [_speed(result.samples_per_second, _samples_per_second_spread(result)) for result in results]


def _speed(value: float | None, standard_error: float | None, state: MachineState | None = None) -> Speed | None:
    known = _positive(value)
    if known is None:
        return None
    usable = standard_error is not None and math.isfinite(standard_error) and standard_error >= 0
    return Speed(known, standard_error if usable else None, state)


def _state(result: MeasuredSpeed) -> MachineState | None:
    reference_time_s = _positive(result.reference_step_time_s)
    if reference_time_s is None:
        return None
    return MachineState(reference_time_s, _positive(result.reference_drift_ratio) or 1.0)


def _samples_per_second_spread(result: MeasuredSpeed) -> float | None:
    step_time_s = _positive(result.step_time_s)
    if result.samples_per_second is None or result.step_time_spread_s is None or step_time_s is None:
        return None
    return result.samples_per_second * result.step_time_spread_s / step_time_s


def _positive(value: float | None) -> float | None:
    """The value where it is a finite number above 0."""
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _failure(result: TrialResult) -> str:
    status = result.status.value.lower().replace("_", " ")
    return f"{status}: {result.reason}" if result.reason else status
