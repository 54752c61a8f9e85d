from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from runners.dry_run.dry_run import DryRun
from runners.dry_run.profile_check import check_policies, random_placement
from runners.dry_run.profile_model import profile_model, traced_batches
from runners.dry_run.step_trace import StepTrace
from runners.workloads.load import load_workload
from search_spaces.choices import SearchChoices
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BatchShape, RecomputePolicy

ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")


class CountingDryRun(DryRun):
    num_traces = 0

    def trace(self, policy: RecomputePolicy, lists: Sequence[str] = (), *, plain: StepTrace | None = None) -> StepTrace:
        self.num_traces += 1
        return super().trace(policy, lists, plain=plain)


def stack(
    trials: Any,
    factory: str,
    num_blocks: int,
    args: dict[str, Any] | None = None,
    sizes: tuple[int, ...] = (2, 4),
) -> Any:
    """A dry run of a model of the folder, and what may be chosen for it."""
    workload = trials(factory, args=args or {}).workload()
    units = (("attention", "attn"), ("mlp", "mlp")) if "relu" not in factory else ()
    shape = ModelShape(0, (BlockList("blocks", "Block", num_blocks, units),))
    actions = ACTIONS if units else ("none", "block", "segment")
    return CountingDryRun(load_workload(workload), workload), SearchChoices(shape, 4, sizes, actions)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param("gpt2", (4,), marks=pytest.mark.slow),
        ("llama_bf16", (2, 4)),
        pytest.param("t5", (2,), marks=pytest.mark.slow),
        pytest.param("gpt_autocast_sgd", (2, 4), marks=pytest.mark.slow),
    ],
)
def test_peaks_from_the_profile_are_those_of_dry_runs(small_model: Any, name: str, sizes: tuple[int, ...]) -> None:
    model = small_model(name)
    choices = SearchChoices(model.choices.shape, 4, sizes, ACTIONS)
    profile = profile_model(model.dry_run, choices)
    assert profile.refusal is None
    assert profile.num_checked >= 4
    assert profile.max_relative_error < 0.01
    timeline = MemoryTimeline(profile)
    draw = random.Random(5)
    for number in range(4):
        placements = tuple(random_placement(of, draw) for of in choices.block_lists)
        policy = RecomputePolicy(choices.batches[number % len(sizes)], placements)
        assert timeline.peak_bytes(policy) == pytest.approx(model.dry_run.peak_bytes(policy), rel=0.01)


def test_blocks_that_save_their_own_outputs_do_not_depend_on_their_neighbours(trials: Any) -> None:
    dry_run, choices = stack(trials, "outputs.py:relu_blocks", 4)
    profile = profile_model(dry_run, choices)
    assert profile.refusal is None
    timeline = MemoryTimeline(profile)
    draw = random.Random(3)
    for number in range(12):
        placement = random_placement(choices.block_lists[0], draw)
        policy = RecomputePolicy(choices.batches[number % 2], (placement,))
        assert timeline.peak_bytes(policy) == pytest.approx(dry_run.peak_bytes(policy), rel=0.005)


@pytest.mark.slow
def test_sizes_between_the_traced_ones_are_never_too_low(small_model: Any) -> None:
    model = small_model("gpt")
    sizes = (1, 2, 3, 6, 12, 24)
    choices = SearchChoices(model.choices.shape, 24, sizes, ("none", "block"))
    profile = profile_model(model.dry_run, choices)
    assert [step.micro_batch_size for step in profile.steps] == [1, 3, 12, 24]
    timeline = MemoryTimeline(profile)
    for batch in choices.batches:
        policy = RecomputePolicy(batch, (choices.block_lists[0].place(["none", "block", "none", "none"]),))
        expected = model.dry_run.peak_bytes(policy)
        assert 0.9999 * expected <= timeline.peak_bytes(policy) <= 1.01 * expected


@pytest.mark.slow
def test_deep_models_take_no_more_traces_than_shallow_ones(trials: Any) -> None:
    counts = []
    for num_blocks in (8, 16):
        dry_run, choices = stack(trials, "outputs.py:deep", num_blocks, {"num_blocks": num_blocks}, sizes=(4,))
        profile = profile_model(dry_run, choices)
        assert profile.refusal is None
        counts.append(dry_run.num_traces)
    assert counts[1] <= counts[0]


def test_blocks_that_run_in_another_order_at_random_are_refused(trials: Any) -> None:
    dry_run, choices = stack(trials, "outputs.py:shuffled", 2)
    assert profile_model(dry_run, choices).refusal == (
        "its blocks do not run in the same order in every step, as with layers dropped at random"
    )


def test_blocks_that_skip_a_part_at_random_are_refused(trials: Any) -> None:
    dry_run, choices = stack(trials, "outputs.py:skipping", 4)
    assert "that no policy touches ran" in (profile_model(dry_run, choices).refusal or "")


def test_flops_are_those_of_the_step(small_model: Any) -> None:
    model = small_model("gpt")
    choices = SearchChoices(model.choices.shape, 4, (2,), ("none", "block"))
    timeline = MemoryTimeline(profile_model(model.dry_run, choices))
    (batch,) = choices.batches
    plain = RecomputePolicy(batch)
    placed = RecomputePolicy(batch, (choices.block_lists[0].place(["block", "none", "none", "none"]),))
    trace = model.dry_run.trace(plain, ["blocks"])
    of_step = 2 * sum(traced.stretch.flops for traced in trace.stretches)
    of_block = 2 * next(t.stretch.flops for t in trace.stretches if t.key.part == "forward")
    assert timeline.flops(plain) == (of_step, 0)
    assert timeline.flops(placed) == (of_step, of_block)


@pytest.mark.parametrize(
    ("global_batch_size", "sizes", "traced"),
    [
        (8, (1, 2, 4, 8), [1, 2, 4, 8]),
        (64, (1, 2, 4, 8, 16, 64), [1, 4, 16, 64]),
        (432, (1, 2, 4, 8, 16, 27), [1, 4, 8, 27]),
    ],
    ids=["few are all traced", "the one that does not accumulate and three others", "all accumulate"],
)
def test_sizes_to_trace(global_batch_size: int, sizes: tuple[int, ...], traced: list[int]) -> None:
    batches = [BatchShape.split(global_batch_size=global_batch_size, micro_batch_size=size) for size in sizes]
    assert [batch.micro_batch_size for batch in traced_batches(batches)] == traced


def test_checked_policies_hold_the_longest_segments_and_every_size(small_model: Any) -> None:
    policies = list(check_policies(small_model("gpt").choices))
    assert policies[0].placement[0].regions[0].action == "segment"
    assert {policy.batch.micro_batch_size for policy in policies} == {1, 2, 4}


def test_what_the_stages_of_a_pipeline_do_otherwise_is_told(small_model: Any) -> None:
    model = small_model("llama_bf16")
    choices = SearchChoices(model.choices.shape, 4, (1, 2), ("none", "block"), stage_borders=(2,))
    profile = profile_model(model.dry_run, choices)
    length, head, element = 32, 64 // 4, 2
    before_blocks = [step.moments[0] for step in profile.steps]
    # Blocks have cosines and sines of the positions saved, whatever the micro-batch; what else the model's forward made
    # (the positions) goes with it. The embeddings are the first block's input and so its own.
    assert [moment.shared_bytes for moment in before_blocks] == [2 * length * head * element] * 2
    assert [moment.released_bytes for moment in before_blocks] == [8 * length] * 2
    # With two stages a step of two micro-batches is in flight as a whole, and none has left gradients.
    assert [(step.micro_batch_size, step.accumulates) for step in profile.first_steps] == [(2, False)]
