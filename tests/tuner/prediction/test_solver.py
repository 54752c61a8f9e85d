"""The solver against every placement there is, and on deep models."""

from __future__ import annotations

from collections.abc import Callable

import made_up
import numpy as np
import pytest

from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import MemoryProfile, Moment
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from search_spaces.registry import make_space
from tuner.prediction.placement_features import PlacementFeatures
from tuner.prediction.solver import NotNestedError, PlacementSolver
from tuner.prediction.time_model import TimeWeights


def brute_force(
    choices: SearchChoices, timeline: MemoryTimeline, features: PlacementFeatures, weights: TimeWeights, index: int
) -> list[tuple[RecomputePolicy, float, int]]:
    """Policy, time and peak of everything at one micro-batch size, one by one."""
    found = []
    for policy in make_space("two_action", choices).policies():
        if features.batch_index(policy) == index:
            of_policy = features.of(policy)
            time = weights.times(index, of_policy.shares[None, :], of_policy.tilts[None, :])[0]
            found.append((policy, float(time), timeline.peak_bytes(policy)))
    return found


CASES = [
    pytest.param([6], made_up.ACTIONS, False, id="one list with segments"),
    pytest.param([7], made_up.ACTIONS, True, id="an odd first block"),
    pytest.param([1], made_up.ACTIONS, False, id="a single block"),
    pytest.param([3, 2], made_up.ACTIONS, False, id="two kinds of blocks"),
    pytest.param([2, 2, 2], ("none", "mlp", "block"), False, id="three kinds of blocks"),
]


@pytest.mark.parametrize(("lengths", "actions", "odd"), CASES)
@pytest.mark.parametrize("seed", range(4))
def test_front_is_that_of_all_placements(lengths: list[int], actions: tuple[str, ...], odd: bool, seed: int) -> None:
    choices = made_up.made_up_choices(lengths, actions=actions)
    features = PlacementFeatures(choices)
    timeline = MemoryTimeline(made_up.made_up_profile(choices, seed, odd_first_block=odd))
    solver = PlacementSolver(choices, features, timeline)
    weights = made_up.made_up_weights(features, seed)
    for index in range(len(features.batches)):
        everything = brute_force(choices, timeline, features, weights, index)
        front = solver.front(index, weights)
        assert np.all(np.diff(front.times) > 0)
        assert np.all(np.diff(front.peaks_bytes) < 0)
        caps = sorted({peak for _, _, peak in everything})
        for cap in [caps[0] - 1, *caps]:
            best = min((time for _, time, peak in everything if peak <= cap), default=None)
            point = front.fastest(cap)
            if best is None:
                assert point is None
                continue
            assert point is not None
            assert front.times[point] == pytest.approx(best, rel=1e-12)
            policy = solver.policy(front, index, point)
            assert timeline.peak_bytes(policy) == front.peaks_bytes[point]


@pytest.mark.parametrize("seed", range(4))
def test_what_lingers_until_the_forward_pass_ends_counts_until_then(seed: int) -> None:
    choices = made_up.made_up_choices([6])
    features = PlacementFeatures(choices)
    timeline = MemoryTimeline(made_up.made_up_profile(choices, seed, lingers=True))
    front = PlacementSolver(choices, features, timeline).front(0, made_up.made_up_weights(features, seed))
    everything = brute_force(choices, timeline, features, made_up.made_up_weights(features, seed), 0)
    for time, peak in zip(front.times, front.peaks_bytes, strict=True):
        assert min(other for _, other, others_peak in everything if others_peak <= peak) == pytest.approx(time)


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize(("lengths", "actions", "odd"), CASES)
def test_listed_candidates_are_all_policies(
    lengths: list[int], actions: tuple[str, ...], odd: bool, lingers: bool
) -> None:
    choices = made_up.made_up_choices(lengths, actions=actions)
    features = PlacementFeatures(choices)
    timeline = MemoryTimeline(made_up.made_up_profile(choices, 1, odd_first_block=odd, lingers=lingers))
    candidates = PlacementSolver(choices, features, timeline).candidates([], 0.0)
    seen = {}
    for index in range(len(candidates)):
        policy = candidates.policy(index)
        seen[policy] = index
        assert candidates.peaks_bytes[index] == timeline.peak_bytes(policy)
        of_policy = features.of(policy)
        np.testing.assert_allclose(candidates.features.shares[index], of_policy.shares, atol=1e-12)
        np.testing.assert_allclose(candidates.features.tilts[index], of_policy.tilts, atol=1e-12)
        assert candidates.batch_indices[index] == features.batch_index(policy)
    assert set(seen) == set(make_space("two_action", choices).policies())


def test_both_ways_to_handle_the_generators_are_candidates() -> None:
    choices = made_up.made_up_choices([3], rng="search", actions=("none", "block"))
    features = PlacementFeatures(choices)
    timeline = MemoryTimeline(made_up.made_up_profile(choices, 1))
    candidates = PlacementSolver(choices, features, timeline).candidates([], 0.0)
    policies = {candidates.policy(index) for index in range(len(candidates))}
    assert policies == set(make_space("two_action", choices).policies())
    off = [index for index in range(len(candidates)) if not candidates.policy(index).preserve_rng_state]
    assert all(candidates.features.shares[index, -1] > 0 for index in off)


@pytest.mark.parametrize("lengths", [[12], [48], [126], [24, 24], [2, 2, 18, 2]])
def test_deep_models_are_solved_within_every_cap(lengths: list[int]) -> None:
    choices = made_up.made_up_choices(lengths, global_batch_size=8)
    features = PlacementFeatures(choices)
    timeline = MemoryTimeline(made_up.made_up_profile(choices, 2))
    solver = PlacementSolver(choices, features, timeline)
    weights = made_up.made_up_weights(features, 2)
    front = solver.front(0, weights)
    for point in {0, len(front.times) // 2, len(front.times) - 1}:
        policy = solver.policy(front, 0, point)
        assert timeline.peak_bytes(policy) == front.peaks_bytes[point]
        of_policy = features.of(policy)
        time = weights.times(0, of_policy.shares[None, :], of_policy.tilts[None, :])[0]
        assert time == pytest.approx(front.times[point], rel=1e-12)
    # No placement among many random ones is faster within the same memory.
    generator = np.random.default_rng(0)
    tables = [of_list.actions for of_list in choices.block_lists]
    for _ in range(200):
        placement = tuple(
            of_list.place([str(generator.choice([a for a in actions if a != "segment"]))] * of_list.num_modules)
            for of_list, actions in zip(choices.block_lists, tables, strict=True)
        )
        policy = RecomputePolicy(features.batches[0], placement).canonical()
        of_policy = features.of(policy)
        time = weights.times(0, of_policy.shares[None, :], of_policy.tilts[None, :])[0]
        point_or_none = front.fastest(timeline.peak_bytes(policy))
        assert point_or_none is not None
        assert front.times[point_or_none] <= time + 1e-12


def solved(change: Callable[[list[Moment], list[Moment]], list[Moment]]) -> PlacementSolver:
    """Of two lists, with moments made of those of their forward and those of their backward."""
    choices = made_up.made_up_choices([2, 2])
    profile = made_up.made_up_profile(choices, 0)
    steps = []
    for step in profile.steps:
        forward, backward = ([m for m in step.moments if m.part == part] for part in ("forward", "backward"))
        steps.append(type(step)(**{**step.__dict__, "moments": tuple(change(forward, backward))}))
    mixed = MemoryProfile(**{**profile.__dict__, "steps": tuple(steps)})
    return PlacementSolver(choices, PlacementFeatures(choices), MemoryTimeline(mixed))


def test_lists_that_run_by_turns_are_refused() -> None:
    with pytest.raises(NotNestedError, match="by turns"):
        solved(lambda forward, backward: [forward[0], forward[2], forward[1], forward[3], *backward])


def test_a_list_without_backward_is_refused() -> None:
    with pytest.raises(NotNestedError, match="no backward"):
        solved(lambda forward, backward: [*forward, *(m for m in backward if m.list_index != 0)])
