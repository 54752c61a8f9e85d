from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.trial import InspectionSpec, MeasurementSpec, TrialStatus, Verdict
from runners.worker import TrialWorker
from search_spaces.policy import Region

Trials = Any


def failing(trials: Trials, how: str, from_samples: int = 4) -> Any:
    return trials("resources.py:failing", args={"how": how, "from_samples": from_samples})


class TestResult:
    def test_holds_every_figure_and_where_it_was_measured(self, trials: Trials) -> None:
        maker = trials("operators.py:words")
        maker.options = {"sequence_length": 5}
        measurement = MeasurementSpec(warmup_steps=2, min_steps=3, max_steps=3)
        result = maker.run("block", micro=2, number=7, measurement=measurement)
        assert (result.status, result.trial_number, result.num_steps) == (TrialStatus.COMPLETED, 7, 3)
        assert result.samples_per_second == pytest.approx(8 / result.step_time_s)
        assert result.tokens_per_second == pytest.approx(5 * result.samples_per_second)
        assert result.step_time_spread_s >= 0
        assert result.recomputed_flops_ratio > 0.1
        assert result.recompute_time_s > 0
        assert result.peak_memory_bytes == result.peak_allocated_bytes
        assert result.device.endswith("threads")
        assert result.worker_pid == os.getpid()
        assert result.wall_time_s > 0

    def test_has_nothing_where_nothing_was_measured(self, trials: Trials) -> None:
        result = trials("stack.py:plain", num_blocks=3).run("none")
        assert result.tokens_per_second is None
        assert result.step_time_spread_s is None
        assert result.relative_speed is None
        assert result.reference_step_time_s is None
        assert result.peak_reserved_bytes is None
        assert result.recomputed_flops_ratio == 0.0
        assert result.recompute_time_s == 0.0

    def test_proof_can_be_left_out(self, trials: Trials) -> None:
        measurement = MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1, verify=False)
        result = trials("state.py:moving_centre").run("block", measurement=measurement)
        assert result.status is TrialStatus.COMPLETED
        assert result.verification.verdict is Verdict.UNVERIFIED
        assert result.verification.reason == "measurement.verify is false"

    def test_proof_and_peak_do_not_depend_on_the_trials_before(self, trials: Trials) -> None:
        maker = trials("chance.py:dropout", num_blocks=3)
        specs = [
            maker.spec(regions, micro=micro, number=number)
            for number, (regions, micro) in enumerate(
                [("block", 2), ("none", 8), ((Region(0, 2, "segment", 2),), 4), ("mlp", 2), ("none", 1)]
            )
        ]
        worker = TrialWorker()
        in_order = {spec.trial_number: worker.run(spec) for spec in specs}
        worker = TrialWorker()
        shuffled = {specs[index].trial_number: worker.run(specs[index]) for index in (3, 0, 4, 2, 1)}
        for number, first in in_order.items():
            second = shuffled[number]
            assert first.verification == second.verification
            assert (first.peak_memory_bytes, first.memory_bytes) == (second.peak_memory_bytes, second.memory_bytes)
            assert first.recomputed_flops_ratio == second.recomputed_flops_ratio

    def test_another_workload_gets_a_session_of_its_own(self, trials: Trials) -> None:
        worker = TrialWorker()
        first = worker.run(trials("state.py:moving_centre").spec("block"))
        second = worker.run(trials("operators.py:tied_words").spec("block"))
        assert first.verification.verdict is Verdict.MISMATCH
        assert second.verification.verdict is Verdict.MATCH

    def test_interleaved_reference_gives_a_relative_speed(self, trials: Trials) -> None:
        maker = trials("resources.py:sleepy")
        measurement = MeasurementSpec(warmup_steps=0, min_steps=3, max_steps=3)
        result = maker.run("block", micro=8, reference=maker.policy("none", micro=1), measurement=measurement)
        assert result.status is TrialStatus.COMPLETED
        # Eight micro-batches of one sleep eight times as long as one of eight does.
        assert result.reference_step_time_s > 0.16
        assert 2 < result.relative_speed < 8.5

    def test_trial_that_cannot_win_is_timed_no_longer_than_it_must(self, trials: Trials) -> None:
        maker = trials("stack.py:plain", num_blocks=3)
        measurement = MeasurementSpec(warmup_steps=0, min_steps=2, max_steps=9, relative_spread=0.0)
        assert maker.run("none", measurement=measurement, memory_cap_bytes=1).num_steps == 2
        assert maker.run("none", measurement=measurement, memory_cap_bytes=2**40).num_steps == 9

    def test_timing_leaves_room_before_the_time_limit(self, trials: Trials) -> None:
        maker = trials("stack.py:plain", num_blocks=3)
        measurement = MeasurementSpec(warmup_steps=0, min_steps=2, max_steps=10**6, relative_spread=0.0)
        result = maker.run("none", measurement=measurement, timeout_s=4.0)
        assert result.status is TrialStatus.COMPLETED
        assert result.wall_time_s < 4.0
        assert 2 <= result.num_steps < 10**6

    def test_plain_model_need_not_fit_at_the_micro_batch_of_the_policy(self, trials: Trials) -> None:
        result = trials("resources.py:fits_only_recomputed").run("block")
        assert result.status is TrialStatus.COMPLETED
        assert result.recomputed_flops_ratio > 0
        assert result.verification.verdict is Verdict.MATCH
        assert result.verification.reference.endswith("at micro-batch 2, the largest at which it fits")

    def test_division_is_proven_under_the_policy_where_the_plain_model_does_not_fit(self, trials: Trials) -> None:
        result = trials("resources.py:fits_only_recomputed").run("block", micro=4)
        assert result.status is TrialStatus.COMPLETED
        assert result.verification.verdict is Verdict.MATCH
        assert result.verification.split_verdict is Verdict.MATCH


class TestOutOfMemory:
    @pytest.mark.parametrize(
        ("how", "reason"),
        [
            ("memory_error", "MemoryError: the host has"),
            ("typed", "OutOfMemoryError: the device"),
            ("allocator", "memory"),
        ],
    )
    def test_refused_allocations_are_typed_whoever_refuses(self, trials: Trials, how: str, reason: str) -> None:
        # One sample fits nowhere, so that not even the plain model can be run for comparison.
        result = failing(trials, how, from_samples=1).run("block", micro=8)
        assert result.status is TrialStatus.OUT_OF_MEMORY
        assert reason in result.reason
        assert result.verification is None
        assert result.peak_memory_bytes is None

    def test_error_that_only_speaks_of_memory_is_a_failure(self, trials: Trials) -> None:
        result = failing(trials, "runtime_error").run("block", micro=8)
        assert result.status is TrialStatus.FAILED
        assert result.reason.startswith("RuntimeError: I have no memory of this place")

    def test_batch_too_large_at_one_size_leaves_the_next_trial_as_if_run_first(self, trials: Trials) -> None:
        maker = trials("stack.py:plain", batch="resources.py:huge_at_four", num_blocks=3)
        worker = TrialWorker()
        too_large = worker.run(maker.spec("block", micro=4))
        assert too_large.status is TrialStatus.OUT_OF_MEMORY
        assert "can't allocate memory" in too_large.reason
        after, first = worker.run(maker.spec("block", micro=2)), maker.run("block", micro=2)
        assert after.status is TrialStatus.COMPLETED
        assert (after.peak_memory_bytes, after.memory_bytes) == (first.peak_memory_bytes, first.memory_bytes)
        assert after.verification == first.verification


class TestFailure:
    def test_names_the_block_and_the_users_last_line(self, trials: Trials) -> None:
        result = trials("resources.py:failing", args={"how": "runtime_error", "from_samples": 4}).run("block", micro=8)
        assert "; at resources.py:" in result.reason
        assert "raise RuntimeError" in result.reason
        assert "\n" not in result.reason
        assert result.detail.startswith("Traceback")

    def test_policy_of_another_model_is_refused_by_its_reason(self, trials: Trials) -> None:
        result = trials("stack.py:plain", num_blocks=4).run("block")
        assert result.status is TrialStatus.FAILED
        assert "placement of blocks is for 4 blocks, but the model has 3" in result.reason

    def test_workload_that_cannot_be_loaded_is_a_failure_without_a_device(self, trials: Trials) -> None:
        result = trials("missing.py:fn").run("block")
        assert result.status is TrialStatus.FAILED
        assert "there is no file" in result.reason
        assert result.device is None


class TestUncleanReason:
    def reason_after(self, trials: Trials, how: str) -> str | None:
        worker = TrialWorker()
        assert worker.run(failing(trials, how).spec("block")).status is TrialStatus.COMPLETED
        return worker.unclean_reason()

    def test_clean_trial_leaves_none(self, trials: Trials) -> None:
        assert self.reason_after(trials, "nothing") is None

    def test_kept_tensors_are_counted(self, trials: Trials) -> None:
        reason = self.reason_after(trials, "tensor")
        assert reason is not None
        num_bytes = int(reason.removeprefix("the trial left ").removesuffix(" bytes alive"))
        assert num_bytes > 0
        assert num_bytes % 4000 == 0

    def test_threads_are_counted(self, trials: Trials) -> None:
        assert "threads" in (self.reason_after(trials, "thread") or "")

    def test_worker_without_a_session_is_not_clean(self) -> None:
        assert TrialWorker().unclean_reason() == "no session"


class TestInspect:
    def test_says_what_the_model_is_made_of(self, trials: Trials) -> None:
        spec = InspectionSpec(workload=trials("operators.py:recomputes_itself").workload(), micro_batch_size=2)
        inspection = TrialWorker().inspect(spec)
        assert inspection.model_class == "Stack"
        assert inspection.has_own_recompute
        assert inspection.device_memory_bytes > 0
        assert inspection.environment["torch"] == torch.__version__
        assert inspection.environment["device_kind"] == "cpu"

    @pytest.mark.parametrize("on_fake_tensors", [False, True])
    @pytest.mark.parametrize(
        "model, expected", [("stack.py:plain", False), ("normalization.py:training_statistics", True)]
    )
    def test_says_whether_there_are_convolutions(
        self, trials: Trials, model: str, expected: bool, on_fake_tensors: bool
    ) -> None:
        spec = InspectionSpec(workload=trials(model).workload(), on_fake_tensors=on_fake_tensors)
        assert TrialWorker().inspect(spec).has_convolutions is expected

    def test_unknown_blocks_are_refused(self, trials: Trials) -> None:
        spec = InspectionSpec(workload=trials("stack.py:plain").workload(), blocks=("layers",))
        with pytest.raises(WorkloadError, match="layers"):
            TrialWorker().inspect(spec)
