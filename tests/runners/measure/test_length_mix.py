from __future__ import annotations

import statistics

import pytest

from runners.measure.length_mix import mean_over_lengths
from runners.measure.step_time import PhaseTimes, StepTimes

#: Seconds per step at each length, recorded one after another.
_RECORDED_S = {512: [0.50, 0.52, 0.54], 256: [0.22, 0.21, 0.23], 128: [0.10, 0.11, 0.12]}


def cycles() -> StepTimes:
    step_times_s = tuple(map(sum, zip(*_RECORDED_S.values(), strict=True)))
    return StepTimes(step_times_s, (0.9, 0.6, 0.3, 0.6), PhaseTimes(0.3, 0.4, 0.2, 0.1))


def test_samples_per_second_are_the_harmonic_mean_of_those_at_each_length() -> None:
    alone = [8 / statistics.median(times_s) for times_s in _RECORDED_S.values()]
    mixed = 8 / statistics.median(mean_over_lengths(cycles(), 3).step_times_s)
    assert mixed == pytest.approx(statistics.harmonic_mean(alone), rel=0.02)
    assert min(alone) < mixed < max(alone)


def test_tokens_per_second_are_all_tokens_of_a_cycle_over_its_time() -> None:
    mean_tokens = statistics.mean(_RECORDED_S)
    per_second = 8 * mean_tokens / mean_over_lengths(cycles(), 3).step_times_s[0]
    assert per_second == pytest.approx(8 * (512 + 256 + 128) / (0.50 + 0.22 + 0.10))


def test_every_time_is_of_one_step_and_speeds_stay() -> None:
    mixed = mean_over_lengths(cycles(), 3)
    assert mixed.reference_times_s == pytest.approx((0.3, 0.2, 0.1, 0.2))
    phases = mixed.phases
    assert (phases.forward_s, phases.backward_s) == (pytest.approx(0.1), pytest.approx(0.4 / 3))
    assert (phases.recompute_s, phases.optimizer_s) == (pytest.approx(0.2 / 3), pytest.approx(0.1 / 3))
    speed, expected = mixed.relative_speed(), cycles().relative_speed()
    assert speed is not None
    assert expected is not None
    assert speed.value == pytest.approx(expected.value)


def test_one_length_is_left_as_it_is() -> None:
    assert mean_over_lengths(cycles(), 1) == cycles()
