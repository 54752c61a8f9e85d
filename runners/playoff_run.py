"""A few policies timed in turn, in one process, on one model: the only fair way to tell close ones apart."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runners.compiler import compiling_afresh
from runners.measure.length_mix import run_in_turn
from runners.measure.speed_comparison import compare_speeds
from runners.measure.spread import Center
from runners.measure.step_time import TimedRun, time_once
from runners.parallel.ranks import any_rank
from runners.rigs_by_division import RigsByDivision
from runners.trial import PlayoffResult, PlayoffSpec
from runners.worker_session import WorkerSession

#: Share of the time limit after which the rounds that were run must do.
_DEADLINE_SHARE = 0.8
#: Rounds that warm each policy up and are not counted.
_WARMUP_ROUNDS = 1
#: A policy that is slower than the fastest by as many standard errors need not be known any better.
_ERRORS_OF_FAR = 5.0


def run_playoff(spec: PlayoffSpec, session: WorkerSession) -> PlayoffResult:
    """Takes one whole optimizer step per policy, sequence length and round, until their ratios are steady.

    Each round begins with another policy, so that none always runs in the wake of the same neighbour.
    """
    if spec.workload.compile is None:
        return _run(spec, session)
    with compiling_afresh():
        return _run(spec, session)


def _run(spec: PlayoffSpec, session: WorkerSession) -> PlayoffResult:
    start = time.monotonic()
    policies = [spec.workload.as_run(policy) for policy in spec.policies]
    steps = [session.steps(policy) for policy in policies]
    num_lengths = len(session.spec.sequence_lengths) or 1
    rigs = RigsByDivision(session)
    rounds: list[list[TimedRun]] = []
    rounds_start = start
    for number in range(_WARMUP_ROUNDS + spec.max_rounds):
        timed: dict[int, TimedRun] = {}
        for offset in range(len(spec.policies)):
            index = (number + offset) % len(spec.policies)
            rig = rigs.placed(policies[index])
            cycle = steps[index]
            timed[index] = time_once(lambda: run_in_turn(rig.step, cycle), session.device, session.ranks)  # noqa: B023  # called at once
        if number < _WARMUP_ROUNDS:
            # Models were built in there, which is not to be paid with rounds.
            rounds_start = time.monotonic()
            continue
        rounds.append([timed[index] for index in range(len(spec.policies))])
        now = time.monotonic()
        is_late = _is_late(spec, rounds_s=now - rounds_start, elapsed_s=now - start)
        if len(rounds) >= spec.min_rounds and (
            any_rank(session.ranks, is_late) or _is_steady(rounds, spec.relative_spread)
        ):
            break
    return PlayoffResult(
        step_times_s=tuple(tuple(run.time_s / num_lengths for run in runs) for runs in zip(*rounds, strict=True)),
        processor_shares=tuple(tuple(run.processor_share for run in runs) for runs in zip(*rounds, strict=True)),
    )


def _is_late(spec: PlayoffSpec, *, rounds_s: float, elapsed_s: float) -> bool:
    if spec.timing_budget_s is not None and rounds_s > spec.timing_budget_s:
        return True
    return spec.timeout_s is not None and elapsed_s > _DEADLINE_SHARE * spec.timeout_s


def _is_steady(rounds: Sequence[Sequence[TimedRun]], relative_spread: float) -> bool:
    """True where the fastest policy is known: each other one's ratio to it is, or that it is far from it is."""
    centers = [_speed_over(rounds, index, 0) for index in range(len(rounds[0]))]
    fastest = max(range(len(centers)), key=lambda index: centers[index].value)
    speeds = (_speed_over(rounds, index, fastest) for index in range(len(centers)) if index != fastest)
    return all(
        speed.standard_error <= relative_spread * speed.value
        or 1 - speed.value >= _ERRORS_OF_FAR * speed.standard_error
        for speed in speeds
    )


def _speed_over(rounds: Sequence[Sequence[TimedRun]], index: int, other: int) -> Center:
    mine, theirs = [runs[index] for runs in rounds], [runs[other] for runs in rounds]
    return compare_speeds(
        [run.time_s for run in mine],
        [run.time_s for run in theirs],
        [[run.processor_share for run in runs] for runs in (mine, theirs)],
    )
