from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import RecomputePolicy
from search_spaces.registry import encoding_of, make_space
from search_spaces.stage_memory import PipelineStages, StageTimeline
from tuner.prediction.pipeline_features import PipelineFeatures
from tuner.prediction.pipeline_solver import PipelineSolver
from tuner.prediction.placement_features import PlacementFeatures
from tuner.prediction.time_model import TimeWeights

NUM_BLOCKS = 4
ACTIONS = ("none", "attention", "block")
#: Of one block and micro-batch sample: bytes kept, bytes that backward needs on top, FLOPs that a rebuild takes.
KEPT = {"none": 100, "attention": 60, "block": 10}
WORKING = {"none": 20, "attention": 50, "block": 110}
REBUILT = {"none": 0, "attention": 4, "block": 10}
STAGES = PipelineStages(first_blocks=(0, 2), outside_bytes=(40, 30), hidden_bytes=(8,))


#: Of a block that finds no gradients, which then stay: bytes alive after its backward, and most within it, on top.
GRADIENTS, GRADIENTS_WORKING = 50, 40


def profile_of(micro_batch_sizes: tuple[int, ...], first_sizes: tuple[int, ...] = ()) -> MemoryProfile:
    def step(size: int, *, is_first: bool = False) -> StepProfile:
        made, working = (GRADIENTS, GRADIENTS_WORKING) if is_first else (0, 0)
        cells = tuple(
            Cell(
                (0,),
                action,
                Stretch(KEPT[action] * size, (KEPT[action] + 5) * size, flops=10 * size),
                Stretch(
                    made - KEPT[action] * size, working + WORKING[action] * size, flops=(20 + REBUILT[action]) * size
                ),
            )
            for action in ACTIONS
        )
        moments = (
            Moment("fixed", Stretch(7 * size, 9 * size, flops=size)),
            *(Moment("forward", None, 0, call) for call in range(NUM_BLOCKS)),
            Moment("fixed", Stretch(30 * size, 70 * size, flops=9 * size)),
            Moment("fixed", Stretch(-30 * size, 20 * size, flops=9 * size)),
            *(Moment("backward", None, 0, call) for call in reversed(range(NUM_BLOCKS))),
            Moment("fixed", Stretch(-7 * size, 3 * size)),
        )
        blocks = ListProfile("blocks", tuple(range(NUM_BLOCKS)), (0,) * NUM_BLOCKS, cells, (50,) * NUM_BLOCKS)
        return StepProfile(size, not is_first, 4 * 270 + 64, moments, (blocks,), Stretch(-270, 30))

    steps = tuple(step(size) for size in micro_batch_sizes)
    return MemoryProfile(270, 270, 540, steps, first_steps=tuple(step(size, is_first=True) for size in first_sizes))


@pytest.fixture
def choices() -> SearchChoices:
    shape = ModelShape(10, (BlockList("blocks", "Block", NUM_BLOCKS, (("attention", "attn"),)),))
    return SearchChoices(shape, 16, (1, 2, 4, 8), ACTIONS, stage_borders=STAGES.first_blocks[1:])


@pytest.fixture
def timeline(choices: SearchChoices) -> StageTimeline:
    return StageTimeline(MemoryTimeline(profile_of((1, 2, 4, 8), (8,))), STAGES)


@pytest.fixture
def features(choices: SearchChoices, timeline: StageTimeline) -> PipelineFeatures:
    plain = timeline.stage_flops(RecomputePolicy(choices.batches[-1]))
    prices = np.array([4 / 30, 10 / 30])
    assert [label.action for label in PlacementFeatures(choices).labels] == ["attention", "block"]
    loads = [flops / max(plain) for flops in plain]
    return PipelineFeatures(choices, STAGES, loads=loads, whole_load=sum(plain) / max(plain), price_means=prices)


@pytest.fixture
def solver(choices: SearchChoices, features: PipelineFeatures, timeline: StageTimeline) -> PipelineSolver:
    return PipelineSolver(choices, features, timeline, make_space(encoding_of(choices), choices))


def weights_of(features: PipelineFeatures) -> TimeWeights:
    base = np.array([1.0, 1.1, 1.2, 1.4])
    prices = np.array([[0.16, 0.31], [0.12, 0.35], [0.15, 0.3], [0.2, 0.3]]) * base[:, None]
    return TimeWeights(base, prices, np.zeros_like(prices), 0.01)


def every_policy(choices: SearchChoices, batch_index: int) -> Iterator[RecomputePolicy]:
    (of_list,) = choices.block_lists
    for actions in itertools.product(ACTIONS, repeat=NUM_BLOCKS):
        yield choices.policy(choices.batches[batch_index], (of_list.place(actions),))


def stage_times(policy: RecomputePolicy, features: PipelineFeatures, prices: np.ndarray) -> list[float]:
    """One micro-batch on each stage, counted block by block."""
    actions = policy.placement[0].actions()
    price_of = {"none": 0.0, "attention": prices[0] / NUM_BLOCKS, "block": prices[1] / NUM_BLOCKS}
    total = sum(features.loads)
    return [
        float(features.loads[stage]) + total * sum(price_of[action] for action in actions[2 * stage : 2 * stage + 2])
        for stage in range(2)
    ]


def test_peaks_count_the_micro_batches_in_flight_of_each_stage(choices: SearchChoices, timeline: StageTimeline) -> None:
    (of_list,) = choices.block_lists
    policy = choices.policy(choices.batch(2), (of_list.place(["block", "none", "attention", "none"]),))
    first, second = timeline.stage_peaks(policy)
    # Per stage: four times its parameters, the inputs, a buffer of 16 samples for what comes from the other one, and
    # what was sent last, of 2 samples.
    buffers = 64 + 16 * 8 + 2 * 8
    # The gradient that was received stays where one process lets it go in the second block.
    height = 2 * max(7 + 10 + 105, 7 + 10 + 100 + 20, 7 + 10 + 110 + 8)
    assert first == 4 * (100 + 40) + buffers + 2 * (7 + 10 + 100) + height
    assert second == 4 * (100 + 30) + buffers + 2 * max(60 + 100 + 70, 60 + 100 + 30 + 20)


def test_what_the_end_of_forward_lets_go_is_kept_by_no_stage_and_made_by_each(choices: SearchChoices) -> None:
    policy = choices.policy(choices.batch(2), (choices.block_lists[0].place(["none"] * NUM_BLOCKS),))

    def peaks(released: int) -> tuple[int, ...]:
        """Where the first moment leaves so much more alive, which the head lets go."""
        profile = profile_of((2,))
        (step,) = profile.steps
        moments = list(step.moments)
        moments[0] = replace(moments[0], stretch=Stretch(14 + released, 18 + released), released_bytes=released)
        head = 1 + NUM_BLOCKS
        moments[head] = replace(moments[head], stretch=Stretch(60 - released, 140))
        longer = replace(profile, steps=(replace(step, moments=tuple(moments)),))
        return StageTimeline(MemoryTimeline(longer), STAGES).stage_peaks(policy)

    first, second = peaks(0)
    # Backward is the highest of the first stage, when it is gone; the head's forward of the second, when it is there.
    assert peaks(6) == (first, second + 6)


def test_the_last_stage_does_not_wait_for_the_embeddings_gradient_of_a_tied_weight(choices: SearchChoices) -> None:
    policy = choices.policy(choices.batch(2), (choices.block_lists[0].place(["block"] * NUM_BLOCKS),))
    alone, tied = (
        StageTimeline(MemoryTimeline(profile_of((2,))), replace(STAGES, tied_bytes=size)).stage_peaks(policy)
        for size in (0, 20)
    )
    # The highest moment is a block's rebuild, after the head's backward.
    assert tied == (alone[0], alone[1] - 20)


def test_a_stage_that_holds_all_of_a_step_at_once_has_no_gradients_then(
    choices: SearchChoices, timeline: StageTimeline
) -> None:
    (of_list,) = choices.block_lists
    policy = choices.policy(choices.batch(8), (of_list.place(["block", "block", "none", "none"]),))
    first, second = timeline.stage_peaks(policy)
    held = 4 * (100 + 40) + 64 + 16 * 8
    kept = 8 * (7 + 10 + 10)
    # Two micro-batches with the first one's backward, of which the second block's comes first; its gradients stay, and
    # so does what was received.
    full = 2 * kept + max(40 + 8 * 110, 50 - 8 * 10 + 8 * 8 + 40 + 8 * 110) - (100 + 40)
    assert first == held + max(full, kept + 8 * 110)
    # The last stage runs backward at once and finds gradients from its second micro-batch on.
    assert second == 4 * (100 + 30) + 64 + 16 * 8 + 8 * 8 + 8 * max(200 + 70, 200 + 30 + 20)


@pytest.mark.parametrize("batch_index", range(4))
@pytest.mark.parametrize("share_of_span", [0.02, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_no_placement_of_all_is_faster_within_the_cap(
    choices: SearchChoices,
    features: PipelineFeatures,
    timeline: StageTimeline,
    solver: PipelineSolver,
    batch_index: int,
    share_of_span: float,
) -> None:
    weights = weights_of(features)
    prices = weights.prices[batch_index] / weights.base[batch_index]
    num_others = choices.batches[batch_index].gradient_accumulation_steps - 1

    def length(policy: RecomputePolicy) -> float:
        times = stage_times(policy, features, prices)
        return num_others * max(times) + sum(times)

    policies = list(every_policy(choices, batch_index))
    peaks = {policy: timeline.peak_bytes(policy) for policy in policies}
    cap = min(peaks.values()) + share_of_span * (max(peaks.values()) - min(peaks.values()))
    rows = solver.fastest(batch_index, weights, cap)
    assert rows is not None
    answer = solver.policy(batch_index, rows)
    assert answer is not None
    assert solver.peak(batch_index, rows) == timeline.peak_bytes(answer) <= cap
    best = min(length(policy) for policy in policies if peaks[policy] <= cap)
    assert length(answer) == pytest.approx(best)


def test_a_cap_below_every_placement_has_no_answer(solver: PipelineSolver, features: PipelineFeatures) -> None:
    assert solver.fastest(0, weights_of(features), 1.0) is None
    assert len(solver.candidates([weights_of(features)], 1.0)) == 0


def test_a_tight_cap_lets_the_first_stage_rebuild_more(
    choices: SearchChoices, timeline: StageTimeline, solver: PipelineSolver, features: PipelineFeatures
) -> None:
    plain = choices.policy(choices.batch(2), (choices.block_lists[0].place(["none"] * NUM_BLOCKS),))
    first, second = timeline.stage_peaks(plain)
    assert second < first
    rows = solver.fastest(2, weights_of(features), second)
    assert rows is not None
    policy = solver.policy(2, rows)
    assert policy is not None
    actions = policy.placement[0].actions()
    assert set(actions[2:]) == {"none"} != set(actions[:2])


def test_candidates_fit_and_can_be_said(
    choices: SearchChoices, timeline: StageTimeline, solver: PipelineSolver, features: PipelineFeatures
) -> None:
    space = make_space(encoding_of(choices), choices)
    found = solver.candidates([weights_of(features)] * 3, 1500.0)
    assert len(found) > 4
    for index in range(len(found)):
        policy = found.policy(index)
        assert found.peaks_bytes[index] == timeline.peak_bytes(policy) <= 1500
        assert space.decode(space.encode(policy)) == policy


class TestFeatures:
    @pytest.mark.parametrize("batch_index", range(4))
    def test_the_sum_is_the_length_of_the_step_at_the_expected_prices(
        self, choices: SearchChoices, features: PipelineFeatures, batch_index: int
    ) -> None:
        prices = np.array([4 / 30, 10 / 30])
        num_others = choices.batches[batch_index].gradient_accumulation_steps - 1
        plain = num_others + sum(features.loads)
        for policy in every_policy(choices, batch_index):
            times = stage_times(policy, features, prices)
            expected = (num_others * max(times) + sum(times)) / plain
            assert 1 + features.of(policy).shares @ prices == pytest.approx(expected)

    def test_the_bubble_is_longer_with_fewer_micro_batches(self, features: PipelineFeatures) -> None:
        means = features.base_means()
        assert list(means) == sorted(means, reverse=True)
        assert means[0] == 1.0
