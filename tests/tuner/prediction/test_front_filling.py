"""Filling a front against every choice of points there is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tuner.prediction.front_filling import hypervolume, plan_filling

CAP = 100.0


def some_points(seed: int, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.uniform(10, CAP, num_points), generator.uniform(1, 3, num_points)


def test_hypervolume_is_the_area_under_the_staircase() -> None:
    peaks, speeds = np.array([20.0, 50.0, 60.0, 120.0]), np.array([1.0, 2.0, 1.5, 9.0])
    # 1.0 from 20 to 50, then 2.0 to the cap; the third is beaten by the second, the fourth is over the cap.
    assert hypervolume(peaks, speeds, CAP) == pytest.approx(1.0 * 30 + 2.0 * 50)
    assert hypervolume(np.array([]), np.array([]), CAP) == 0.0


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("goal", [0.9, 0.99])
def test_no_fewer_points_would_do(seed: int, goal: float) -> None:
    peaks, speeds = some_points(seed, 9)
    is_measured = np.zeros(9, dtype=bool)
    is_measured[:2] = True
    plan = plan_filling(peaks, speeds, is_measured, cap_bytes=CAP, goal=goal)
    whole = hypervolume(peaks, speeds, CAP)

    def share(added: tuple[int, ...]) -> float:
        taken = [0, 1, *added]
        return hypervolume(peaks[taken], speeds[taken], CAP) / whole

    assert plan.covered == pytest.approx(share(()))
    assert share(plan.added) >= goal - 1e-12
    for fewer in combinations(range(2, 9), max(len(plan.added) - 1, 0)):
        if len(plan.added):
            assert share(fewer) < goal


@pytest.mark.parametrize("seed", range(5))
def test_the_most_useful_point_comes_first(seed: int) -> None:
    peaks, speeds = some_points(seed, 30)
    is_measured = np.arange(30) < 3
    plan = plan_filling(peaks, speeds, is_measured, cap_bytes=CAP, goal=0.995)
    gains = [hypervolume(np.append(peaks[:3], peaks[i]), np.append(speeds[:3], speeds[i]), CAP) for i in plan.added]
    assert gains == sorted(gains, reverse=True)
    assert not is_measured[list(plan.added)].any()


def test_without_any_measured_point_it_begins_with_some() -> None:
    peaks, speeds = some_points(1, 20)
    plan = plan_filling(peaks, speeds, np.zeros(20, dtype=bool), cap_bytes=CAP, goal=0.9)
    assert plan.covered == 0.0
    assert plan.added


def test_a_covered_front_needs_nothing() -> None:
    peaks, speeds = some_points(2, 20)
    plan = plan_filling(peaks, speeds, np.ones(20, dtype=bool), cap_bytes=CAP, goal=0.999)
    assert plan.added == ()
    assert plan.covered == pytest.approx(1.0)


def test_a_long_front_is_planned_on_a_thinned_one_with_every_measured_point() -> None:
    peaks = np.linspace(1, CAP, 5_000)
    speeds = np.sqrt(peaks)
    is_measured = np.zeros(5_000, dtype=bool)
    is_measured[[7, 2_501]] = True
    plan = plan_filling(peaks, speeds, is_measured, cap_bytes=CAP, goal=0.97)
    taken = [7, 2_501, *plan.added]
    share = hypervolume(peaks[taken], speeds[taken], CAP) / hypervolume(peaks, speeds, CAP)
    assert share >= 0.965
    assert len(plan.added) < 25
