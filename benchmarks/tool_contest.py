"""Candidates beside one another in one process: each on a model of its own, their steps in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tool_candidates import Candidate
from tool_record import Peak, ToolRecord
from tool_work import Work

from runners.devices.base import Device
from runners.measure.step_time import TimedRun, time_once
from runners.proof.compare import compare_records, split_tolerance
from runners.proof.setup import ProofSetup
from runners.proof.training_record import TrainingRecord, record_training
from runners.rig import RigStep
from runners.workloads.load import load_workload


class OutOfTimeError(Exception):
    """This call's time is over; what was measured is on disk."""


@dataclass(frozen=True)
class Deadline:
    """Until when a call may measure; never where it has no limit.

    Attributes:
        at_s: On the monotonic clock.
    """

    at_s: float | None

    def left_s(self) -> float | None:
        return None if self.at_s is None else max(0.0, self.at_s - time.monotonic())

    def check(self, needed_s: float = 0.0) -> None:
        """Raises OutOfTimeError where less than this is left."""
        left_s = self.left_s()
        if left_s is not None and left_s <= needed_s:
            raise OutOfTimeError


class Contest:
    """All candidates of one work that could be put on a model, and their steps.

    Args:
        record: Where figures go; what it holds is not measured again.
        save: Called after each figure.
    """

    def __init__(
        self,
        work: Work,
        device: Device,
        record: ToolRecord,
        *,
        save: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._work = work
        self._record = record
        self._save = save
        self._say = say
        self._setup = ProofSetup(load_workload(work.spec), work.spec, device)
        self._contestants: dict[str, _Contestant] = {}
        #: Gradients of the first step, of those that others are compared with.
        self._references: dict[str, TrainingRecord] = {}

    def enter(self, candidate: Candidate) -> None:
        """Builds it, compares its first step and measures its peak; what fails is recorded as failed."""
        if candidate.name in self._contestants or candidate.name in self._record.failures:
            return
        try:
            contestant = _Contestant(candidate, self._work, self._setup)
            self._compare(candidate, contestant.gradients)
            if candidate.name not in self._record.peaks:
                self._record.peaks[candidate.name] = contestant.measure_peak()
        except Exception as error:  # noqa: BLE001  # a tool that fails is a row of the table, not the end of it
            self._fail(candidate.name, error)
            return
        self._contestants[candidate.name] = contestant
        self._save()
        peak = self._record.peaks[candidate.name]
        self._say(f"{candidate.name}: {peak.peak_bytes / 2**20:.1f} MiB, first step {contestant.first_step_s:.1f} s")

    def _compare(self, candidate: Candidate, gradients: TrainingRecord) -> None:
        """Notes it where the candidate's gradients are not those of training without recompute."""
        if candidate.trains_as is None:
            self._references[candidate.name] = gradients
            return
        reference = self._references.get(candidate.trains_as)
        if reference is not None:
            error = compare_records(reference, gradients).relative_error
            if not error <= split_tolerance(gradients.dtype):
                self._record.astray[candidate.name] = error
                self._say(f"{candidate.name}: trains another model, its gradients are off by {error:.2g}")
        gradients.close()

    def run_rounds(self, deadline: Deadline) -> None:
        """Every contestant's steps in turn, each round begun by another one, until there are as many as wanted.

        Raises:
            OutOfTimeError: Less time is left than the last round took.
        """
        round_s = 0.0
        while len(self._record.rounds) < self._work.num_rounds:
            deadline.check(round_s)
            start = time.monotonic()
            self._record.rounds.append(self._round(len(self._record.rounds)))
            self._save()
            round_s = time.monotonic() - start
            self._say(f"round {len(self._record.rounds)} of {self._work.num_rounds}: {round_s:.0f} s")

    def _round(self, number: int) -> dict[str, tuple[float, float]]:
        names = list(self._contestants)
        first = number % len(names)
        times = {}
        for name in [*names[first:], *names[:first]]:
            try:
                timed = self._contestants[name].take_step()
            except Exception as error:  # noqa: BLE001  # as above
                del self._contestants[name]
                self._fail(name, error)
            else:
                times[name] = (timed.time_s, timed.processor_share)
        return times

    def _fail(self, name: str, error: Exception) -> None:
        line = (str(error).strip().splitlines() or [""])[0]
        self._record.failures[name] = f"{type(error).__name__}: {line}"
        self._save()
        self._say(f"{name}: {self._record.failures[name]}")


class _Contestant:
    """A candidate on a model of its own, its first step behind it.

    Attributes:
        gradients: Of that step.
    """

    def __init__(self, candidate: Candidate, work: Work, setup: ProofSetup) -> None:
        device = setup.device
        self._before_bytes = device.live_bytes()
        self._rig = setup.fresh_rig()
        self._device = device
        candidate.put_on(self._rig.model)
        num_micro_batches = work.global_batch_size // candidate.micro_batch_size
        self._micro_batches: Sequence[Any] = [
            setup.batch(candidate.micro_batch_size, step=0, part=part) for part in range(num_micro_batches)
        ]
        setup.seed()
        start = time.monotonic()
        self.gradients = record_training(
            self._rig.step, [self._micro_batches], device=device, dtype=setup.lowest_dtype(self._rig)
        )
        self.first_step_s = time.monotonic() - start

    def measure_peak(self) -> Peak:
        """Before any other model is built, since what was alive before this one is taken off."""
        step = RigStep(self._rig, self._micro_batches)
        peak = self._device.measure_peak(step, live_bytes_before_trial=self._before_bytes)
        return Peak(peak_bytes=peak.capped_bytes, first_step_s=self.first_step_s)

    def take_step(self) -> TimedRun:
        """One step, after one that is not timed: in training the step before is of the same kind, too.

        Right after a step that needs less memory one would first have to get its pages from the system again, which
        took up to a tenth longer.
        """
        self._rig.step.run(self._micro_batches)
        return time_once(lambda: self._rig.step.run(self._micro_batches), self._device)
