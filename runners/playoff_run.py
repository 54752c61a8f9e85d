"""A few policies timed in turn, in one process, on one model: the only fair way to tell close ones apart."""

from __future__ import annotations

import statistics
import time

from runners.measure.length_mix import run_in_turn
from runners.measure.spread import median_standard_error
from runners.measure.step_time import time_once
from runners.rig import Rig
from runners.trial import PlayoffResult, PlayoffSpec
from runners.worker_session import WorkerSession

#: Share of the time limit after which the rounds that were run must do.
_DEADLINE_SHARE = 0.8
#: Rounds that warm each policy up and are not counted.
_WARMUP_ROUNDS = 1


def run_playoff(spec: PlayoffSpec, session: WorkerSession) -> PlayoffResult:
    """Takes one whole optimizer step per policy, sequence length and round, until their ratios are steady.

    Each round begins with another policy, so that none always runs in the wake of the same neighbour.
    """
    start = time.monotonic()
    steps = [session.steps(policy) for policy in spec.policies]
    num_lengths = len(session.spec.sequence_lengths) or 1
    rig = Rig(session.workload, spec.workload, session.device)
    rounds: list[list[float]] = []
    for number in range(_WARMUP_ROUNDS + spec.max_rounds):
        times_s = [0.0] * len(spec.policies)
        for offset in range(len(spec.policies)):
            index = (number + offset) % len(spec.policies)
            rig.place(spec.policies[index])
            cycle = steps[index]
            cycle_s = time_once(lambda: run_in_turn(rig.step, cycle), session.device)  # noqa: B023  # called at once
            times_s[index] = cycle_s / num_lengths
        if number >= _WARMUP_ROUNDS:
            rounds.append(times_s)
        is_late = spec.timeout_s is not None and time.monotonic() - start > _DEADLINE_SHARE * spec.timeout_s
        if len(rounds) >= spec.min_rounds and (is_late or _is_steady(rounds, spec.relative_spread)):
            break
    return PlayoffResult(step_times_s=tuple(zip(*rounds, strict=True)))


def _is_steady(rounds: list[list[float]], relative_spread: float) -> bool:
    """True where each policy's speed relative to the first one's is known well enough."""
    for index in range(1, len(rounds[0])):
        ratios = [times_s[0] / times_s[index] for times_s in rounds]
        if median_standard_error(ratios) > relative_spread * statistics.median(ratios):
            return False
    return True
