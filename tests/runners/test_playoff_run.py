from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runners.devices.cpu import CpuDevice
from runners.playoff_run import run_playoff
from runners.trial import PlayoffSpec
from runners.worker_session import WorkerSession

Trials = Any


class ScriptedDevice(CpuDevice):
    """A CPU that says of each step what it took, whatever it really took."""

    def __init__(self, times_s: Iterator[float]) -> None:
        super().__init__()
        self.times_s = times_s

    def elapsed_s(self, start: float, end: float) -> float:
        return next(self.times_s)


@pytest.fixture
def playoff(trials: Trials) -> Callable[..., int]:
    """Plays with the given times; gives back the number of rounds."""

    def play(
        *times_s: float | Callable[[int], float],
        max_rounds: int = 40,
        timeout_s: float | None = None,
        timing_budget_s: float | None = None,
    ) -> int:
        maker = trials("stack.py:plain", num_blocks=3)
        policies = tuple(maker.policy("none", micro=size) for size in (8, 4, 2)[: len(times_s)])
        spec = PlayoffSpec(
            policies=policies,
            workload=maker.workload(),
            max_rounds=max_rounds,
            timeout_s=timeout_s,
            timing_budget_s=timing_budget_s,
        )
        session = WorkerSession(maker.workload(), global_batch_size=8)
        session.device = ScriptedDevice(scripted(times_s))
        result = run_playoff(spec, session)
        assert result.failure is None
        assert len({len(times) for times in (*result.step_times_s, *result.processor_shares)}) == 1
        return len(result.step_times_s[0])

    return play


def scripted(times_s: tuple[float | Callable[[int], float], ...]) -> Iterator[float]:
    """Times in the order in which the policies run: each round begins with another one."""
    number = 0
    while True:
        for offset in range(len(times_s)):
            time_s = times_s[(number + offset) % len(times_s)]
            yield time_s(number) if callable(time_s) else time_s
        number += 1


def shaky(number: int) -> float:
    return math.exp(random.Random(number).gauss(0.0, 0.2))


def test_steady_times_end_after_the_least_rounds(playoff: Callable[..., int]) -> None:
    assert playoff(1.0, 1.01) == 5


def test_times_that_are_close_and_shaky_go_on_to_the_most(playoff: Callable[..., int]) -> None:
    assert playoff(1.0, shaky) == 40


def test_one_far_behind_need_not_be_steady(playoff: Callable[..., int]) -> None:
    assert playoff(1.0, lambda number: 2 * shaky(number)) < 20


def test_all_are_compared_with_the_fastest_whichever_that_is(playoff: Callable[..., int]) -> None:
    assert playoff(3.0, shaky, 1.0) == 40
    assert playoff(lambda number: 3 * shaky(number), 1.0, 1.001) < 20


def test_a_machine_that_slows_all_of_them_disturbs_nothing(playoff: Callable[..., int]) -> None:
    assert playoff(shaky, lambda number: 1.01 * shaky(number)) == 5


@pytest.mark.parametrize("limit", ["timeout_s", "timing_budget_s"])
def test_want_of_time_ends_it(playoff: Callable[..., int], limit: str) -> None:
    assert playoff(1.0, shaky, **{limit: 0.0}) == 5
    assert playoff(1.0, shaky, **{limit: 3600.0}) == 40
