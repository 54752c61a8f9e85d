"""Runs trials from a recorded table or a function instead of a device, on a clock that jumps instead of waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from runners.base import RunnerError
from runners.diagnosis.records import Diagnosis, DiagnosisSpec
from runners.step_timeline.records import StepTimeline, StepTimelineSpec
from runners.trial import (
    DryRunResult,
    DryRunSpec,
    InspectionSpec,
    ModelInspection,
    PlayoffResult,
    PlayoffSpec,
    TrialResult,
    TrialSpec,
    TrialStatus,
    failed_trial,
)

#: What a trial answers. Number and policy of the answer are replaced by the trial's own, so one record can serve many.
Outcome = Callable[[TrialSpec], TrialResult]


class ReplayRunner:
    """A :class:`TrialRunner` without devices.

    Trials take simulated time: :meth:`collect` moves the clock to the next trial that ends, at most by its timeout, and
    returns at once. So a long study runs in seconds, trials overtake one another as on a cluster, and every run of the
    same study is the same.

    Attributes:
        clock_s: Simulated seconds since the start.
    """

    def __init__(
        self,
        outcome: Outcome | Mapping[str, TrialResult],
        *,
        capacity: int = 1,
        latency_s: Callable[[TrialSpec], float] | float = 1.0,
        inspection: ModelInspection | None = None,
        dry_run: DryRunResult | None = None,
        enforces_cap: bool = False,
    ) -> None:
        """Stores what to answer.

        Args:
            outcome: A function of the trial, or results by policy key; a policy that is not in the table FAILS.
            capacity: Trials in flight at once.
            latency_s: Simulated seconds of a trial. One longer than its ``timeout_s`` ends there as TIMED_OUT.
            inspection: The answer to :meth:`inspect`; None refuses to inspect.
            dry_run: The answer to :meth:`dry_run`; None answers that there is none.
            enforces_cap: Peaks over the trial's cap end as OUT_OF_MEMORY, as on devices that can limit an allocator.
        """
        self._outcome = outcome if callable(outcome) else _look_up(outcome)
        self._capacity = capacity
        self._latency_s = latency_s if callable(latency_s) else _constant(latency_s)
        self._inspection = inspection
        self._dry_run = dry_run or DryRunResult(failure="no dry run was recorded")
        self._enforces_cap = enforces_cap
        self._in_flight: list[tuple[float, int, TrialSpec]] = []
        self._closed = False
        self.clock_s = 0.0

    def describe(self) -> str:
        return f"replay of recorded trials, {self._capacity} at a time"

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        if self._inspection is None:
            raise RunnerError(
                f"{spec.workload.model_factory}: no inspection of a model was recorded; give one to replay"
            )
        return self._inspection

    def dry_run(self, spec: DryRunSpec) -> DryRunResult:
        return self._dry_run

    def capacity(self) -> int:
        return self._capacity

    def submit(self, spec: TrialSpec) -> None:
        if self._closed:
            raise RunnerError(f"trial {spec.trial_number} was submitted after the runner was closed")
        if any(number == spec.trial_number for _, number, _ in self._in_flight):
            raise RunnerError(f"trial {spec.trial_number} is in flight already")
        if len(self._in_flight) >= self._capacity:
            raise RunnerError(f"trial {spec.trial_number} is one more than the {self._capacity} that may be in flight")
        limit_s = spec.timeout_s if spec.timeout_s is not None else float("inf")
        ends_s = self.clock_s + min(self._latency_s(spec), limit_s)
        heapq.heappush(self._in_flight, (ends_s, spec.trial_number, spec))

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        deadline_s = self.clock_s + timeout_s
        if not self._in_flight or self._in_flight[0][0] > deadline_s:
            self.clock_s = deadline_s
            return ()
        self.clock_s = max(self.clock_s, self._in_flight[0][0])
        results = []
        while self._in_flight and self._in_flight[0][0] <= self.clock_s:
            _, _, spec = heapq.heappop(self._in_flight)
            results.append(self._answer(spec))
        return results

    def diagnosis(self, spec: DiagnosisSpec) -> Diagnosis:
        return Diagnosis(failure="no diagnosis was recorded")

    def step_timeline(self, spec: StepTimelineSpec) -> StepTimeline:
        return StepTimeline(failure="no timeline was recorded")

    def playoff(self, spec: PlayoffSpec) -> PlayoffResult:
        """Every round repeats the recorded step times."""
        times_s = []
        for policy in spec.policies:
            result = self._outcome(TrialSpec(trial_number=0, policy=policy, workload=spec.workload))
            if result.step_time_s is None:
                return PlayoffResult(failure=f"no step time of policy {policy.key} was recorded")
            times_s.append((result.step_time_s,) * spec.min_rounds)
        return PlayoffResult(step_times_s=tuple(times_s))

    def cancel(self) -> Sequence[TrialResult]:
        specs = [spec for _, _, spec in sorted(self._in_flight)]
        self._in_flight.clear()
        return [failed_trial(spec, TrialStatus.CANCELLED, "the study stopped first") for spec in specs]

    def close(self) -> None:
        self._in_flight.clear()
        self._closed = True

    def _answer(self, spec: TrialSpec) -> TrialResult:
        latency_s = self._latency_s(spec)
        if spec.timeout_s is not None and latency_s > spec.timeout_s:
            return failed_trial(spec, TrialStatus.TIMED_OUT, f"stopped after the time limit of {spec.timeout_s:g} s")
        result = self._outcome(spec)
        peak, cap = result.peak_memory_bytes, spec.memory_cap_bytes
        if self._enforces_cap and peak is not None and cap is not None and peak > cap:
            return failed_trial(spec, TrialStatus.OUT_OF_MEMORY, f"the device refused to allocate beyond {cap} bytes")
        own = {"trial_number": spec.trial_number, "policy": spec.policy, "wall_time_s": latency_s}
        return result.model_copy(update=own)


def table_of(results: Iterable[TrialResult]) -> dict[str, TrialResult]:
    """Results by the key of their policy, for :class:`ReplayRunner`; of several with one key the last one."""
    return {result.policy.key: result for result in results}


def _look_up(table: Mapping[str, TrialResult]) -> Outcome:
    def outcome(spec: TrialSpec) -> TrialResult:
        recorded = table.get(spec.policy.key)
        if recorded is None:
            return failed_trial(spec, TrialStatus.FAILED, f"no trial of policy {spec.policy.key} was recorded")
        return recorded

    return outcome


def _constant(latency_s: float) -> Callable[[TrialSpec], float]:
    return lambda _: latency_s
