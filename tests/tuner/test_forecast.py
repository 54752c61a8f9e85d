"""Which predictions a dry run allows."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from runners.trial import DryRunResult
from search_spaces.memory_timeline import MemoryTimeline
from tuner.forecast import describe_dry_run, flops_prices, make_forecast, plain_prices
from tuner.prediction.next_policy import Tried
from tuner.prediction.placement_features import PlacementFeatures

sys.path.append(str(Path(__file__).parent / "prediction"))

import made_up

CHOICES = made_up.made_up_choices([4], actions=("none", "mlp", "block", "segment"))
PROFILE = made_up.made_up_profile(CHOICES, 0)


def test_peaks_are_those_of_the_timeline() -> None:
    forecast = make_forecast(CHOICES, DryRunResult(profile=PROFILE), cap_bytes=10**9, dry_run_peaks=lambda _: ())
    assert forecast is not None
    policy = forecast.proposer.source.candidates([], 10**9).policy(7)
    assert forecast.predict(policy, []).peak_memory_bytes == MemoryTimeline(PROFILE).peak_bytes(policy)
    assert forecast.predict(policy, []).time is None
    assert forecast.predict(policy, [Tried(policy, time=2.0, is_feasible=True)]).time == pytest.approx(2.0, rel=0.05)


def test_prices_are_shares_of_the_step_in_flops() -> None:
    features = PlacementFeatures(CHOICES)
    prices = flops_prices(CHOICES, features, MemoryTimeline(PROFILE))
    by_action = {label.action: price for label, price in zip(features.labels, prices, strict=True)}
    for action in ("mlp", "block"):
        assert by_action[action] == pytest.approx(made_up.REBUILT_SHARES[action] / 3)


def test_where_stretches_do_not_add_up_each_policy_is_asked_of_a_dry_run() -> None:
    refused = dataclasses.replace(PROFILE, refusal="its blocks hand tensors across")
    timeline = MemoryTimeline(PROFILE)
    answer = DryRunResult(profile=refused, wall_time_s=1.5)
    forecast = make_forecast(
        CHOICES,
        answer,
        cap_bytes=10**9,
        dry_run_peaks=lambda policies: [timeline.peak_bytes(policy) for policy in policies],
    )
    assert forecast is not None
    candidates = forecast.proposer.source.candidates([], 10**9)
    policies = [candidates.policy(index) for index in range(len(candidates))]
    np.testing.assert_array_equal(candidates.peaks_bytes, [timeline.peak_bytes(policy) for policy in policies])
    assert "one policy at a time, since its blocks hand tensors across" in describe_dry_run(answer)


def test_a_profile_without_any_traced_step_will_do() -> None:
    refused = dataclasses.replace(PROFILE, refusal="its blocks are skipped at random", steps=())
    forecast = make_forecast(
        CHOICES, DryRunResult(profile=refused), cap_bytes=10**9, dry_run_peaks=lambda policies: [1000] * len(policies)
    )
    assert forecast is not None
    features = forecast.proposer.features
    by_action = {label.action: price for label, price in zip(features.labels, plain_prices(features), strict=True)}
    assert by_action["mlp"] < by_action["block"] == by_action["segment"] < 0.5


def test_where_that_fails_too_nothing_is_predicted() -> None:
    refused = dataclasses.replace(PROFILE, refusal="its blocks hand tensors across")
    answer = DryRunResult(profile=refused)
    assert make_forecast(CHOICES, answer, cap_bytes=10**9, dry_run_peaks=lambda _: ()) is None


def test_a_model_without_a_dry_run_has_no_forecast() -> None:
    answer = DryRunResult(failure="it looks at the values of its inputs")
    assert make_forecast(CHOICES, answer, cap_bytes=10**9, dry_run_peaks=lambda _: ()) is None
    assert describe_dry_run(answer) == (
        "dry run: none, so no peak can be predicted (it looks at the values of its inputs)"
    )
