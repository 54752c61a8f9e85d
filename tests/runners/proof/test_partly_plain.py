"""Proofs of policies for models that do not fit as given, nor in another precision."""

from __future__ import annotations

from typing import Any

import pytest

from runners.proof.partly_plain import partly_plain
from runners.trial import TrialResult, TrialStatus, Verdict, Verification
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

Trials = Any


def verification_of(result: TrialResult) -> Verification:
    assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
    assert result.verification is not None
    return result.verification


@pytest.mark.parametrize("num_parts", [2, 3, 5])
def test_each_block_is_plain_in_one_run_and_rebuilt_in_all_others(num_parts: int) -> None:
    placements = (BlockListPlacement("encoder", 3, (), (Region(0, 2, "segment", 3),)), BlockListPlacement("decoder", 2))
    runs = partly_plain(RecomputePolicy(BatchShape(1, 1, 1, 1), placements, False), num_parts)
    assert len(runs) == num_parts
    assert all(run.preserve_rng_state for run in runs)
    for path in range(2):
        for block in range(placements[path].num_blocks):
            actions = [run.placement[path].actions()[block] for run in runs]
            assert sorted(actions) == ["block"] * (num_parts - 1) + ["none"]


def test_more_runs_than_blocks_are_none() -> None:
    assert partly_plain(RecomputePolicy(BatchShape(1, 1, 1, 1), (BlockListPlacement("h", 3),)), 4) == []


@pytest.mark.parametrize(("most_plain", "num_runs"), [(2, 2), (1, 4)])
@pytest.mark.parametrize("regions", [(Region(0, 3, "block"),), (Region(0, 3, "segment", 2),)], ids=["block", "segment"])
def test_a_policy_of_a_model_that_does_not_fit_is_proven_part_by_part(
    trials: Trials, regions: Any, most_plain: int, num_runs: int
) -> None:
    result = trials("limited.py:few_plain", args={"most_plain": most_plain}, num_blocks=4).run(regions, micro=4)
    verification = verification_of(result)
    assert (verification.verdict, verification.reason) == (Verdict.MATCH, None)
    assert verification.split_verdict is Verdict.MATCH
    assert verification.reference == (
        f"{num_runs} runs of the model at micro-batch 1, in each of which another part of the blocks is plain and all "
        "others are recomputed, since it does not fit as given"
    )


def test_a_wrong_policy_is_seen_part_by_part(trials: Trials) -> None:
    maker = trials("limited.py:few_plain", args={"most_plain": 1}, num_blocks=4)
    verification = verification_of(maker.run("block", rng=False))
    assert verification.verdict is Verdict.MISMATCH
    assert verification.reason is not None
    assert "differs by" in verification.reason


def test_where_no_block_fits_plainly_nothing_is_proven_but_the_policy_is_measured(trials: Trials) -> None:
    result = trials("limited.py:few_plain", args={"most_plain": 0}, num_blocks=4).run("block")
    verification = verification_of(result)
    assert verification.verdict is Verdict.UNVERIFIED
    assert verification.reason is not None
    assert verification.reason.startswith("nothing fits that the policy could be compared with")
    assert result.peak_memory_bytes is not None


def test_a_division_that_does_not_fit_in_float32_is_compared_in_the_models_own_precision(trials: Trials) -> None:
    maker = trials("limited.py:coarse_only", options={"dtype": "bfloat16"})
    verification = verification_of(maker.run("block", micro=2))
    assert (verification.verdict, verification.split_verdict) == (Verdict.MATCH, Verdict.MATCH)
