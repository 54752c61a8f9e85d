from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.trial import TrialResult, TrialStatus, Verdict, Verification
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.objective import Objective, ranking_speeds
from tuner.pareto import Standings, Winner, compare, complexity
from tuner.speed_ratio import Playoff

OBJECTIVE = Objective(memory_cap_bytes=1000)
#: With a playoff all results are looked at once more, not only what the last one changes.
NOBODY_TIMED_AGAIN = Playoff(trials=(), step_times_s=())


def policy(*regions: Region, micro_batch_size: int = 4, preserve_rng_state: bool = True) -> RecomputePolicy:
    placement = BlockListPlacement("h", 12, (("mlp", "mlp"),), regions)
    batch = BatchShape.split(global_batch_size=8, micro_batch_size=micro_batch_size)
    return RecomputePolicy(batch, (placement,), preserve_rng_state)


def measured(number: int, speed: float, peak_bytes: int, spread: float | None = 0.0, **changes: Any) -> TrialResult:
    fields: dict[str, Any] = {
        "trial_number": number,
        "policy": policy(),
        "status": TrialStatus.COMPLETED,
        "samples_per_second": 10.0 * speed,
        "relative_speed": speed,
        "relative_speed_spread": spread,
        "peak_memory_bytes": peak_bytes,
        "verification": Verification(verdict=Verdict.MATCH),
    }
    return TrialResult(**{**fields, **changes})


def standings_of(results: Sequence[TrialResult]) -> Standings:
    standings = Standings(OBJECTIVE)
    for result in results:
        standings.add(result)
    return standings


def find_winner(results: Sequence[TrialResult]) -> Winner | None:
    return standings_of(results).front_with_winner()[1]


def front_numbers(*results: TrialResult) -> list[int]:
    front, _ = standings_of(results).front_with_winner()
    return [result.trial_number for result in front]


def winner_number(*results: TrialResult) -> int:
    winner = find_winner(results)
    assert winner is not None
    return winner.result.trial_number


def test_the_front_is_what_nothing_beats_in_both() -> None:
    results = [measured(0, 1.0, 900), measured(1, 0.8, 500), measured(2, 0.7, 600), measured(3, 0.9, 901)]
    assert front_numbers(*results) == [0, 1]


def test_equal_speed_keeps_the_smaller_and_equal_points_both_stay() -> None:
    results = [measured(0, 1.0, 900), measured(1, 1.0, 800), measured(2, 1.0, 800)]
    assert front_numbers(*results) == [1, 2]


def test_the_front_and_the_winner_hold_only_feasible_trials() -> None:
    over = measured(0, 9.0, 1500)
    mismatch = measured(1, 8.0, 400, verification=Verification(verdict=Verdict.MISMATCH))
    failed = TrialResult(trial_number=2, policy=policy(), status=TrialStatus.FAILED, reason="a bug")
    fits = measured(3, 0.5, 990)
    assert front_numbers(over, mismatch, failed, fits) == [3]
    assert winner_number(over, mismatch, failed, fits) == 3


def test_nothing_feasible_has_no_winner() -> None:
    assert standings_of([measured(0, 9.0, 1500)]).front_with_winner() == ((), None)


def test_numbers_that_are_none_never_win() -> None:
    nan = measured(0, math.nan, 100, samples_per_second=math.nan)
    infinite = measured(1, math.inf, 100, samples_per_second=math.inf)
    assert winner_number(nan, infinite, measured(2, 0.5, 900)) == 2
    assert front_numbers(nan, infinite, measured(2, 0.5, 900)) == [2]


def test_the_fastest_wins_beyond_the_spread() -> None:
    assert winner_number(measured(0, 1.0, 900, 0.01), measured(1, 0.95, 300, 0.01)) == 0


def test_a_tie_goes_to_less_memory_and_is_named() -> None:
    results = [measured(0, 1.0, 900, 0.02), measured(1, 0.97, 300, 0.02), measured(2, 0.5, 100, 0.02)]
    winner = find_winner(results)
    assert winner is not None
    assert winner.result.trial_number == 1
    assert [tied.trial_number for tied in winner.ties] == [0]


def test_noise_that_makes_everything_tie_is_no_reason_to_give_up_speed() -> None:
    results = [measured(0, 1.0, 900, 0.1), measured(1, 0.98, 850, 0.1), measured(2, 0.9, 300, 0.1)]
    winner = find_winner(results)
    assert winner is not None
    assert winner.result.trial_number == 1
    assert [tied.trial_number for tied in winner.ties] == [0, 2]


def test_a_tie_in_memory_too_goes_to_the_simpler_policy() -> None:
    mixed = policy(Region(0, 5, "mlp"), Region(6, 11, "block"))
    uniform = policy(Region(0, 11, "block"))
    complex_one = measured(0, 1.0, 900, 0.02, policy=mixed)
    simple_one = measured(1, 0.99, 905, 0.02, policy=uniform)
    assert winner_number(complex_one, simple_one) == 1


def test_a_clear_saving_of_memory_beats_simplicity() -> None:
    mixed = measured(0, 1.0, 850, 0.02, policy=policy(Region(0, 5, "mlp"), Region(6, 11, "block")))
    uniform = measured(1, 1.0, 900, 0.02, policy=policy(Region(0, 11, "block")))
    assert winner_number(mixed, uniform) == 0


def test_policies_from_simple_to_complex() -> None:
    ordered = [
        policy(micro_batch_size=8),
        policy(micro_batch_size=4),
        policy(Region(0, 5, "block")),
        policy(Region(0, 11, "block")),
        policy(Region(0, 11, "block"), micro_batch_size=2),
        policy(Region(0, 11, "block"), preserve_rng_state=False),
        replace(policy(Region(0, 11, "block")), compile="blocks", compile_memory_budget=0.5),
        policy(Region(0, 2, "mlp"), Region(3, 11, "block")),
    ]
    shuffled = random.Random(0).sample(ordered, len(ordered))
    assert sorted(shuffled, key=complexity) == ordered


def test_compare_gives_the_ratio_with_its_spread() -> None:
    ratio = compare(measured(0, 1.2, 1, 0.012), measured(1, 0.6, 1, 0.012))
    assert ratio is not None
    assert ratio.value == pytest.approx(2.0)
    assert ratio.standard_error == pytest.approx(2.0 * math.hypot(0.01, 0.02))
    assert not ratio.is_tie


@pytest.mark.parametrize(("speed", "is_tie"), [(1.02, True), (1.04, False), (0.98, True), (0.96, False)])
def test_a_difference_within_two_standard_errors_is_a_tie(speed: float, is_tie: bool) -> None:
    ratio = compare(measured(0, speed, 1, 0.01), measured(1, 1.0, 1, 0.01))
    assert ratio is not None
    assert ratio.is_tie == is_tie


def test_an_unknown_spread_hides_no_difference() -> None:
    ratio = compare(measured(0, 1.001, 1, None), measured(1, 1.0, 1, 0.5))
    assert ratio is not None
    assert ratio.standard_error is None
    assert not ratio.is_tie


def test_what_has_no_speed_cannot_be_compared() -> None:
    failed = TrialResult(trial_number=2, policy=policy(), status=TrialStatus.FAILED)
    assert compare(measured(0, 1.0, 1), failed) is None


def test_results_of_one_trial_number_can_be_compared() -> None:
    ratio = compare(measured(0, 1.5, 1), measured(0, 1.0, 1))
    assert ratio is not None
    assert ratio.value == pytest.approx(1.5)


results_strategy = st.lists(
    st.tuples(st.sampled_from([0.5, 0.8, 0.9, 1.0, math.nan]), st.integers(1, 12).map(lambda n: n * 100)), max_size=12
).map(lambda points: [measured(i, speed, peak, 0.05) for i, (speed, peak) in enumerate(points)])


@settings(deadline=None, derandomize=True)
@given(results=results_strategy)
def test_the_front_holds_no_dominated_point_and_leaves_out_only_dominated_ones(results: list[TrialResult]) -> None:
    def point(result: TrialResult) -> tuple[float, int]:
        assert result.relative_speed is not None
        assert result.peak_memory_bytes is not None
        return result.relative_speed, result.peak_memory_bytes

    def dominates(a: TrialResult, b: TrialResult) -> bool:
        (speed_a, peak_a), (speed_b, peak_b) = point(a), point(b)
        return speed_a >= speed_b and peak_a <= peak_b and (speed_a, peak_a) != (speed_b, peak_b)

    # Where one speed is missing all are ranked by samples per second, which are in proportion here.
    feasible = [r for r in results if OBJECTIVE.score(r).feasible and not math.isnan(point(r)[0])]
    expected = {r.trial_number for r in feasible if not any(dominates(other, r) for other in feasible)}
    front, winner = standings_of(results).front_with_winner()
    assert {r.trial_number for r in front} == expected | ({winner.result.trial_number} if winner else set())


@settings(deadline=None, derandomize=True)
@given(results=results_strategy)
def test_the_winner_ties_with_the_fastest_and_its_order_does_not_matter(results: list[TrialResult]) -> None:
    front, winner = standings_of(results).front_with_winner()
    assert (winner is None) == (front == ())
    if winner is not None:
        ratio = compare(winner.result, front[0])
        assert ratio is not None
        assert ratio.is_tie
        assert ratio.value >= 0.97 - 1e-9
        assert find_winner(results[::-1]) == winner


def test_playoff_moves_those_that_took_part_on_the_front() -> None:
    # By its own figure trial 1 is slower than trial 0 and larger, so dominated; timed in turn it is twice as fast.
    results = [measured(0, 1.0, 100), measured(1, 0.9, 200)]
    assert front_numbers(*results) == [0]
    playoff = Playoff(trials=(0, 1), step_times_s=((2.0, 2.0, 2.0), (1.0, 1.0, 1.0)))
    front, winner = standings_of(results).front_with_winner(playoff)
    assert [r.trial_number for r in front] == [1, 0]
    assert winner is not None
    assert winner.result.trial_number == 1


def test_winner_of_a_tie_stands_on_the_front() -> None:
    # Within one per cent of memory the simpler policy wins, although the other one is faster and smaller by a hair.
    complex_policy = policy(Region(0, 11, "block"))
    results = [measured(0, 1.0, 1000, spread=0.05), measured(1, 1.001, 999, spread=0.05, policy=complex_policy)]
    front, winner = standings_of(results).front_with_winner()
    assert winner is not None
    assert winner.result.trial_number == 0
    assert [r.trial_number for r in front] == [1, 0]


@st.composite
def streams(draw: st.DrawFn) -> list[TrialResult]:
    """Results in order of their end: ties, equal points, some without relative speed, unproven or over the cap."""
    points = st.tuples(
        st.sampled_from([0.5, 0.8, 0.9, 0.93, 1.0, 1.02]),
        st.integers(1, 11).map(lambda n: n * 100),
        st.sampled_from([0.0, 0.01, 0.05, None]),
        st.sampled_from([{}, {}, {}, {"relative_speed": None}, {"relative_speed": math.nan}, {"verification": None}]),
        st.sampled_from([policy(), policy(Region(0, 11, "block")), policy(Region(0, 3, "mlp"))]),
    )
    drawn = draw(st.lists(points, max_size=14))
    results = [
        measured(number, speed, peak, spread, **{"policy": placed, **changes})
        for number, (speed, peak, spread, changes, placed) in enumerate(drawn)
    ]
    return draw(st.permutations(results))


def feasible_by_speed(results: Sequence[TrialResult]) -> list[TrialResult]:
    """The fastest first, then the smaller, then the earlier."""
    feasible = [result for result in results if OBJECTIVE.score(result).feasible]
    ranked = [
        (-speed.value, result.peak_memory_bytes, result.trial_number, result)
        for result, speed in zip(feasible, ranking_speeds(feasible), strict=True)
        if speed is not None
    ]
    return [result for *_, result in sorted(ranked, key=lambda each: each[:3])]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(stream=streams())
def test_standings_say_after_each_result_what_a_look_at_all_of_them_says(stream: list[TrialResult]) -> None:
    standings = Standings(OBJECTIVE)
    for count, result in enumerate(stream, start=1):
        standings.add(result)
        assert standings.front_with_winner() == standings.front_with_winner(NOBODY_TIMED_AGAIN)
        ranked = list(standings.by_speed())
        assert ranked == feasible_by_speed(stream[:count])
        assert standings.fastest_plain() == next((r for r in ranked if not r.policy.recomputes), None)


@settings(deadline=None, derandomize=True)
@given(stream=streams(), data=st.data())
def test_after_a_playoff_it_does_not_matter_in_which_order_results_came(
    stream: list[TrialResult], data: st.DataObject
) -> None:
    numbers = data.draw(st.permutations(range(len(stream) + 1)))[:4]
    times_s = st.tuples(*[st.sampled_from([0.8, 0.99, 1.0, 1.01])] * 3)
    playoff = Playoff(trials=tuple(numbers), step_times_s=tuple(data.draw(times_s) for _ in numbers))
    in_order = sorted(stream, key=lambda result: result.trial_number)
    assert standings_of(stream).front_with_winner(playoff) == standings_of(in_order).front_with_winner(playoff)
