from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import capacity_model
from search_spaces.capacity_model import (
    plain_activation_bytes,
    recompute_step_time_s,
    segmented_activation_bytes,
)

MIB = 2**20
A = 64 * MIB
counts = st.integers(1, 40)
sizes = st.integers(0, 1000)


def test_twelve_plain_layers_hold_twelve_times_their_internals() -> None:
    assert plain_activation_bytes(12, A) == 12 * A == 768 * MIB


def test_segments_of_three_hold_four_boundaries_and_the_internals_of_three_layers() -> None:
    assert segmented_activation_bytes(12, 3, A, A) == (4 + 3) * A == 448 * MIB


def test_one_extra_forward_makes_120_ms_of_30_and_60() -> None:
    assert recompute_step_time_s(0.030, 0.060) == pytest.approx(0.120)


def test_recompute_of_half_the_forward_costs_half_of_it() -> None:
    assert recompute_step_time_s(0.030, 0.060, 0.5) == pytest.approx(0.105)


def test_examples_in_the_docstrings_hold() -> None:
    result = doctest.testmod(capacity_model)
    assert result.attempted > 0
    assert result.failed == 0


def held_at_worst(num_layers: int, segment_size: int, boundary: int, internal: int) -> int:
    """The same, by keeping a list of what is alive while the layers run forward and backward."""
    segments = [range(num_layers)[first : first + segment_size] for first in range(0, num_layers, segment_size)]
    alive = [boundary for _ in segments]
    worst = sum(alive)
    for segment in reversed(segments):
        rebuilt = [internal for _ in segment]
        worst = max(worst, sum(alive) + sum(rebuilt))
        alive.pop()
    return worst


@given(num_layers=counts, data=st.data(), boundary=sizes, internal=sizes)
def test_formula_is_the_worst_moment_of_a_pass_played_out(
    num_layers: int, data: st.DataObject, boundary: int, internal: int
) -> None:
    size = data.draw(st.integers(1, num_layers))
    expected = held_at_worst(num_layers, size, boundary, internal)
    assert segmented_activation_bytes(num_layers, size, boundary, internal) == expected


@given(num_layers=counts, boundary=sizes, internal=sizes)
def test_one_segment_over_everything_saves_nothing(num_layers: int, boundary: int, internal: int) -> None:
    whole = segmented_activation_bytes(num_layers, num_layers, boundary, internal)
    assert whole == plain_activation_bytes(num_layers, internal) + boundary


@pytest.mark.parametrize(
    ("boundary", "internal"), [(1, 1), (1, 4), (4, 1)], ids=["equal", "inner heavy", "outer heavy"]
)
def test_of_the_sizes_that_divide_the_depth_the_square_root_holds_least(boundary: int, internal: int) -> None:
    divisors = [size for size in range(1, 145) if 144 % size == 0]
    held = {size: segmented_activation_bytes(144, size, boundary, internal) for size in divisors}
    assert held[math.isqrt(144 * boundary // internal)] == min(held.values())


def test_a_shorter_last_segment_leaves_the_worst_moment_to_the_one_before() -> None:
    assert segmented_activation_bytes(7, 3, boundary_bytes=1, internal_bytes=10) == 2 * 1 + 3 * 10


@pytest.mark.parametrize("size", [0, -1, 13])
def test_a_segment_that_is_none_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"segment_size is {size}; 1 to num_layers, 12, is allowed"):
        segmented_activation_bytes(12, size, A, A)


def test_a_chain_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="num_layers is 0; at least 1 is allowed"):
        plain_activation_bytes(0, A)


def test_a_negative_size_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="boundary_bytes is -1; 0 or more is allowed"):
        segmented_activation_bytes(12, 3, -1, A)


@pytest.mark.parametrize("ratio", [-0.1, 1.5, math.nan])
def test_a_share_outside_the_forward_pass_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"recomputed_ratio is .*; 0 to 1 is allowed"):
        recompute_step_time_s(0.030, 0.060, ratio)


@pytest.mark.parametrize("time_s", [-1.0, math.nan])
def test_a_time_that_is_none_is_refused(time_s: float) -> None:
    with pytest.raises(ValueError, match=r"backward_time_s is .*; 0 or more is allowed"):
        recompute_step_time_s(0.030, time_s)
