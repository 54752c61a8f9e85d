"""Which predictions a dry run allows."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from runners.measure.copy_times import HostCopies, PlainForward
from runners.trial import DryRunResult, ModelInspection, TrialStatus, Verdict
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from tuner.forecast import describe_dry_run, flops_prices, make_forecast, plain_prices
from tuner.prediction.next_policy import NextPolicy
from tuner.prediction.placement_features import PlacementFeatures
from tuner.prediction.tried import Tried

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


COPIES = HostCopies(to_host_bytes_per_s=2e9, from_host_bytes_per_s=4e9, run_beside=False)


def offload_price(copies: HostCopies | None, forward_s: float) -> float:
    """Of a search that offloads; forward of one sample takes so long."""
    choices = made_up.made_up_choices([4], actions=("none", "block", "offload"))
    inspection = ModelInspection(
        shape=choices.shape,
        model_class="Model",
        host_copies=copies,
        plain_forward=PlainForward(micro_batch_size=2, time_s=2 * forward_s),
    )
    features = PlacementFeatures(choices)
    prices = flops_prices(choices, features, MemoryTimeline(PROFILE), inspection)
    return float(prices[[label.action for label in features.labels].index("offload")])


class TestOffloading:
    def test_costs_what_the_copies_take_where_nothing_hides_them(self) -> None:
        of_list = MemoryTimeline(PROFILE).step_profile(1).lists[0]
        block = next(cell for cell in of_list.cells if cell.action == "none")
        moved_bytes = 4 * block.forward.delta_bytes
        assert offload_price(COPIES, 0.1) == pytest.approx(moved_bytes * (1 / 2e9 + 1 / 4e9) / 0.3)

    def test_costs_nothing_where_the_computation_takes_longer(self) -> None:
        beside = COPIES.model_copy(update={"run_beside": True})
        assert offload_price(beside, 1.0) == 0.0
        assert 0.0 < offload_price(beside, 1e-4) < offload_price(COPIES, 1e-4)

    def test_is_guessed_where_nobody_has_measured_copies(self) -> None:
        assert offload_price(None, 0.1) == 0.2


class TestBudgetsOfTheCompiler:
    CHOICES = dataclasses.replace(
        CHOICES, micro_batch_sizes=(4,), actions=("none",), compile="model", compile_memory_budgets=(0.25, 0.5)
    )

    def propose(self, cap_bytes: int, tried: list[Tried]) -> RecomputePolicy | None:
        answer = DryRunResult(profile=PROFILE)
        forecast = make_forecast(
            self.CHOICES, answer, cap_bytes=cap_bytes, dry_run_peaks=lambda _: (), is_compiled=True
        )
        assert forecast is not None
        taken = {trial.policy.key for trial in tried}
        proposed = forecast.proposer.propose(tried, lambda policy: policy.key in taken, seed=0)
        return proposed.policy if isinstance(proposed, NextPolicy) else None

    def budgets(self) -> list[RecomputePolicy]:
        return [self.CHOICES.budget_policy(self.CHOICES.batches[0], budget) for budget in (0.5, 0.25)]

    def measured_plain(self) -> tuple[Tried, int]:
        plain = self.CHOICES.policy(self.CHOICES.batches[0], self.CHOICES.plain_placements)
        peak_bytes = MemoryTimeline(PROFILE).peak_bytes(plain)
        tried = Tried(plain, TrialStatus.COMPLETED, 1.0, 0.001, peak_bytes, recompute_verdict=Verdict.MATCH)
        return tried, peak_bytes

    def test_each_is_tried_and_what_one_keeps_says_nothing_of_the_other(self) -> None:
        half, quarter = self.budgets()
        plain, plain_bytes = self.measured_plain()
        tried, cap_bytes = [plain], int(0.85 * plain_bytes)
        first = self.propose(cap_bytes, tried)
        assert first in (half, quarter)
        # It keeps far more than its share.
        tried.append(Tried(first, TrialStatus.COMPLETED, 1.05, 0.001, 2 * plain_bytes, recompute_verdict=Verdict.MATCH))
        second = self.propose(cap_bytes, tried)
        assert second in (half, quarter)
        assert second != first

    def test_below_a_wrong_one_none_is_tried_and_above_it_they_are(self) -> None:
        half, quarter = self.budgets()
        plain, plain_bytes = self.measured_plain()
        cap_bytes = int(0.85 * plain_bytes)
        for wrong, then in ((half, None), (quarter, half)):
            mismatch = Tried(wrong, TrialStatus.COMPLETED, 1.0, 0.001, 1, recompute_verdict=Verdict.MISMATCH)
            assert self.propose(cap_bytes, [plain, mismatch]) == then
        # That one does not run at all tells nothing about another.
        failed = Tried(half, TrialStatus.FAILED)
        assert self.propose(cap_bytes, [plain, failed]) == quarter

    def test_are_listed_where_each_policy_takes_a_dry_run(self) -> None:
        refused = dataclasses.replace(PROFILE, refusal="its blocks hand tensors across")
        timeline = MemoryTimeline(PROFILE)

        def peaks(policies: Sequence[RecomputePolicy]) -> list[int]:
            assert all(policy.compile_memory_budget is None for policy in policies)
            return [timeline.peak_bytes(policy) for policy in policies]

        forecast = make_forecast(self.CHOICES, DryRunResult(profile=refused), cap_bytes=10**9, dry_run_peaks=peaks)
        assert forecast is not None
        candidates = forecast.proposer.source.candidates([], 10**9)
        budgets = [candidates.policy(index).compile_memory_budget for index in range(len(candidates))]
        assert budgets.count(0.5) == budgets.count(0.25) == len(self.CHOICES.batches)
