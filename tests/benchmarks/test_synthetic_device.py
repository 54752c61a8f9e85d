from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from replay_search import run_search
from synthetic_device import DEVICE_KINDS, DeviceKind, SyntheticDevice

from runners.trial import TrialSpec, TrialStatus, WorkloadSpec
from search_spaces.registry import make_space
from tuner.prediction.front_filling import hypervolume

SMALL = DeviceKind("small", (4,), global_batch_size=4)
KINDS = [
    pytest.param(SMALL, id="plain"),
    pytest.param(replace(SMALL, growth=0.8), id="later blocks dearer"),
    pytest.param(replace(SMALL, slow_batch=1.4, slow_pair=1.6), id="slow micro-batch and pair"),
    pytest.param(replace(SMALL, has_allocator=True), id="allocator"),
    pytest.param(replace(SMALL, lengths=(2, 2), global_batch_size=2, roughness=0.0), id="two lists, solved"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_best_is_that_of_all_policies_one_by_one(kind: DeviceKind, seed: int) -> None:
    device = SyntheticDevice(kind, seed)
    every = [device.actual(policy) for policy in make_space("two_action", device.choices).policies()]
    cap = device.objective.memory_cap_bytes
    times, peaks = np.array([a.time for a in every]), np.array([a.peak_bytes for a in every])
    assert device.best.time == pytest.approx(times[peaks <= cap].min())
    assert device.best.front == pytest.approx(hypervolume(peaks, 1 / times, cap))


def measured(device: SyntheticDevice, seed: int, number: int = 0) -> tuple[float, float]:
    """Step time and standard error of the first policy."""
    policy = next(make_space("two_action", device.choices).policies())
    spec = TrialSpec(trial_number=number, policy=policy, workload=WorkloadSpec(model_factory="none"))
    result = device.outcome(seed)(spec)
    assert result.status is TrialStatus.COMPLETED
    assert result.step_time_s is not None
    assert result.step_time_spread_s is not None
    return result.step_time_s, result.step_time_spread_s


def test_noise_is_as_large_as_said_and_the_same_for_equal_seeds() -> None:
    device = SyntheticDevice(replace(SMALL, noise=0.05), 0)
    times = np.array([measured(device, seed=1, number=number)[0] for number in range(400)])
    assert times.std() / times.mean() == pytest.approx(0.05, rel=0.15)
    assert measured(device, seed=1) == measured(device, seed=1)
    assert measured(device, seed=1) != measured(device, seed=2)


def test_allocator_reserves_more_than_predicted_and_not_always_as_much_more() -> None:
    device = SyntheticDevice(replace(SMALL, has_allocator=True), 0)
    forecast = device.forecast()
    ratios = []
    for policy in make_space("two_action", device.choices).policies():
        predicted = forecast.predict(policy, []).peak_memory_bytes
        assert predicted is not None
        ratios.append(device.actual(policy).peak_bytes / predicted)
    assert min(ratios) > 1.01
    assert max(ratios) < 1.04
    assert max(ratios) - min(ratios) > 0.005


def test_kinds_have_names_of_their_own() -> None:
    assert len({kind.name for kind in DEVICE_KINDS}) == len(DEVICE_KINDS)


@pytest.mark.parametrize("num_workers", [1, 4])
def test_search_is_within_one_per_cent_after_calibration(num_workers: int) -> None:
    device = SyntheticDevice(SMALL, 1)
    trace = run_search(device, "model_guided", seed=1, num_trials=20, num_workers=num_workers)
    times = [t.actual.time for t in trace.trials if t.is_feasible and t.actual is not None]
    assert min(times) <= 1.01 * device.best.time
