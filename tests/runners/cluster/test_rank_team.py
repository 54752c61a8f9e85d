from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from runners.ray_runner import RayRunner, RayRunnerOptions
from runners.trial import InspectionSpec, MeasurementSpec, TrialResult, TrialSpec, TrialStatus, Verdict
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

Trials = Any
UNITS = (("attention", "attn"), ("mlp", "mlp"))
NUM_RANKS = 2


def spec_of(maker: Any, action: str = "block", *, strategy: str = "ddp", micro: int = 2, **options: Any) -> TrialSpec:
    batch = BatchShape.split(global_batch_size=8, micro_batch_size=micro, data_parallel_degree=NUM_RANKS)
    num_blocks = maker.num_blocks
    regions = (Region(0, num_blocks - 1, action, 2 if action == "segment" else None),)
    workload = maker.workload().model_copy(update={"strategy": strategy, "sharded_lists": ("blocks",)})
    return TrialSpec(
        trial_number=0,
        policy=RecomputePolicy(batch, (BlockListPlacement("blocks", num_blocks, UNITS, regions),)),
        workload=workload,
        **{"measurement": MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1), "timeout_s": 120.0, **options},
    )


def run(runner: RayRunner, spec: TrialSpec) -> TrialResult:
    runner.submit(spec)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        for result in runner.collect(1.0):
            return result
    raise AssertionError("no result within 240 s")


@pytest.fixture(scope="module")
def runner() -> Iterator[RayRunner]:
    opened = RayRunner(RayRunnerOptions(resources_per_trial={"CPU": 1}, num_ranks=NUM_RANKS))
    opened.open()
    yield opened
    opened.close()


@pytest.mark.ray
@pytest.mark.slow
class TestTwoRanks:
    def test_each_trial_gets_its_ranks(self, runner: RayRunner) -> None:
        assert "each trial gets 2 ranks of CPU: 1 each" in runner.describe()

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
    @pytest.mark.parametrize("action", ["block", "segment"])
    def test_a_policy_is_measured_and_proven(
        self, runner: RayRunner, trials: Trials, strategy: str, action: str
    ) -> None:
        spec = spec_of(trials("chance.py:dropout", num_blocks=3), action, strategy=strategy)
        result = run(runner, spec)
        assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
        assert result.verification is not None
        assert result.verification.verdict is Verdict.MATCH
        assert result.verification.split_verdict is Verdict.MATCH
        assert f"{strategy} on 2 ranks" in str(result.verification.reference)
        assert result.communication is not None
        assert result.communication.gradient_reductions == 1

    def test_processes_are_kept_while_trials_succeed(self, runner: RayRunner, trials: Trials) -> None:
        spec = spec_of(trials("chance.py:dropout", num_blocks=3))
        first, second = run(runner, spec), run(runner, spec)
        assert (first.status, second.status) == (TrialStatus.COMPLETED, TrialStatus.COMPLETED)
        assert first.worker_pid == second.worker_pid

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
    @pytest.mark.parametrize(
        ("how", "status", "reason"),
        [
            ("runtime_error", TrialStatus.FAILED, "rank 1: RuntimeError: I have no memory of this place"),
            ("typed", TrialStatus.OUT_OF_MEMORY, "rank 1: OutOfMemoryError: the device has no more"),
            ("kill", TrialStatus.FAILED, "rank 1: worker died (signal 9, SIGKILL, likely memory)"),
        ],
    )
    def test_the_rank_that_fails_is_named_and_the_next_trial_runs(
        self, runner: RayRunner, trials: Trials, how: str, status: TrialStatus, reason: str, strategy: str
    ) -> None:
        result = run(runner, spec_of(trials("ranks.py:failing", args={"how": how}), strategy=strategy))
        assert result.status is status
        assert result.reason is not None
        assert result.reason.startswith(reason)
        assert run(runner, spec_of(trials("stack.py:plain", num_blocks=3))).status is TrialStatus.COMPLETED

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
    def test_the_rank_that_hangs_is_named_with_its_line(self, runner: RayRunner, trials: Trials, strategy: str) -> None:
        spec = spec_of(trials("ranks.py:failing", args={"how": "loop"}), strategy=strategy, timeout_s=30.0)
        result = run(runner, spec)
        assert result.status is TrialStatus.TIMED_OUT
        assert result.reason is not None
        assert result.reason.startswith("rank 1: not finished after 30 s; it stands in resources.py line")
        assert "the other ranks wait for it" in result.reason

    def test_a_loss_that_differs_between_ranks_is_another_training(self, runner: RayRunner, trials: Trials) -> None:
        result = run(runner, spec_of(trials("ranks.py:forgetful")))
        assert result.verification is not None
        assert result.verification.verdict is Verdict.MISMATCH
        assert result.verification.split_verdict is Verdict.MISMATCH
        assert result.verification.recompute_verdict is Verdict.MATCH

    @pytest.mark.parametrize("micro, verdict", [(4, Verdict.MATCH), (2, Verdict.MISMATCH)], ids=["whole", "divided"])
    def test_a_model_whose_ranks_ask_each_other_in_forward_is_compared_with_one_process(
        self, runner: RayRunner, trials: Trials, micro: int, verdict: Verdict
    ) -> None:
        result = run(runner, spec_of(trials("ranks.py:pooled"), micro=micro))
        assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
        assert result.verification is not None
        assert result.verification.recompute_verdict is Verdict.MATCH
        assert result.verification.split_verdict is verdict

    def test_a_model_that_no_rank_can_hold_is_inspected_measured_and_proven(
        self, runner: RayRunner, trials: Trials
    ) -> None:
        maker = trials("ranks.py:too_large_alone")
        spec = spec_of(maker, strategy="fsdp2")
        inspection = runner.inspect(InspectionSpec(workload=spec.workload, micro_batch_size=2))
        assert [blocks.path for blocks in inspection.shape.block_lists] == ["blocks"]
        result = run(runner, spec)
        assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
        assert result.verification is not None
        assert result.verification.verdict is Verdict.MATCH
        assert result.verification.reference is not None
        assert "without a policy, at micro-batch 1, fsdp2 on 2 ranks, the largest at which it fits" in str(
            result.verification.reference
        )

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
    def test_a_model_that_does_not_fit_plainly_is_proven_part_by_part(
        self, runner: RayRunner, trials: Trials, strategy: str
    ) -> None:
        maker = trials("limited.py:few_plain", args={"most_plain": 1}, num_blocks=4)
        result = run(runner, spec_of(maker, strategy=strategy))
        assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
        assert result.verification is not None
        assert (result.verification.verdict, result.verification.reason) == (Verdict.MATCH, None)
        assert str(result.verification.reference).startswith(
            f"4 runs of the model at micro-batch 1, {strategy} on 2 ranks, in each of which another part of the blocks"
        )
        assert result.communication is not None
        assert result.communication.all_gather.calls_added_by_recompute is None

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
    def test_a_division_that_fits_in_the_models_own_precision_only_is_compared_in_it(
        self, runner: RayRunner, trials: Trials, strategy: str
    ) -> None:
        maker = trials("limited.py:coarse_only", options={"dtype": "bfloat16"})
        result = run(runner, spec_of(maker, strategy=strategy))
        assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
        assert result.verification is not None
        assert (result.verification.verdict, result.verification.split_verdict) == (Verdict.MATCH, Verdict.MATCH)
