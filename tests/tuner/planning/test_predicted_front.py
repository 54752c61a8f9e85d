from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from simulation import policy

from tuner.planning.predicted_front import MOST_ROWS, Candidate, cheapest, front_of, thinned


def candidate(size: int, peak: int, time: float) -> Candidate:
    return Candidate(size, peak, time, policy)


candidates = st.lists(
    st.builds(candidate, st.sampled_from([1, 2, 4]), st.integers(1, 9), st.sampled_from([1.0, 1.1, 1.2, 1.3])),
    max_size=30,
)


def test_the_cheapest_is_the_fastest_then_the_largest_then_the_smallest_in_memory() -> None:
    best = candidate(4, 7, 1.0)
    assert cheapest([candidate(8, 1, 1.1), candidate(2, 1, 1.0), candidate(4, 8, 1.0), best]) is best
    assert cheapest([]) is None


@given(candidates)
def test_no_point_of_the_front_is_beaten_and_every_other_one_is(given_candidates: list[Candidate]) -> None:
    front = front_of(given_candidates, sizes_compare=True)
    kept = {(each.peak_bytes, each.time) for each in front}
    assert len(kept) == len(front)
    for each in given_candidates:
        beaten = any(o.peak_bytes <= each.peak_bytes and o.time <= each.time for o in front)
        assert beaten, "each candidate is on the front, or as good as a point of it, or worse"
    for each in front:
        others = [o for o in front if o is not each]
        assert not any(o.peak_bytes <= each.peak_bytes and o.time <= each.time for o in others)


@given(candidates)
def test_where_sizes_do_not_compare_a_smaller_one_beats_no_larger_one(given_candidates: list[Candidate]) -> None:
    front = front_of(given_candidates, sizes_compare=False)
    for each in given_candidates:
        at_least_as_large = [o for o in given_candidates if o.micro_batch_size >= each.micro_batch_size]
        is_beaten = any(
            o.peak_bytes <= each.peak_bytes and o.time <= each.time
            and (o.peak_bytes, o.time, o.micro_batch_size) != (each.peak_bytes, each.time, each.micro_batch_size)
            for o in at_least_as_large
        )  # fmt: skip
        key = (each.micro_batch_size, each.peak_bytes, each.time)
        on_front = key in {(o.micro_batch_size, o.peak_bytes, o.time) for o in front}
        assert on_front != is_beaten


def test_the_front_begins_with_the_largest_peak_and_the_largest_size() -> None:
    given_candidates = [candidate(1, 1, 1.0), candidate(2, 5, 1.0), candidate(2, 3, 1.2)]
    front = front_of(given_candidates, sizes_compare=False)
    assert [(each.micro_batch_size, each.peak_bytes) for each in front] == [(2, 5), (2, 3), (1, 1)]


def test_a_long_front_keeps_its_ends() -> None:
    front = front_of([candidate(1, peak, 100.0 - peak) for peak in range(50)], sizes_compare=True)
    rows = thinned(front, sizes_compare=True)
    assert len(rows) == MOST_ROWS
    assert (rows[0], rows[-1]) == (front[0], front[-1])


def test_each_size_has_its_share_of_the_rows() -> None:
    given_candidates = [candidate(size, peak, 100.0 - peak - size) for size in (1, 2, 4) for peak in range(30)]
    rows = thinned(front_of(given_candidates, sizes_compare=False), sizes_compare=False)
    assert [each.micro_batch_size for each in rows] == [4] * 4 + [2] * 4 + [1] * 4 or len(rows) <= MOST_ROWS
