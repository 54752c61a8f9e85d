from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.cluster.shares import Claim, ShareBook, fair_shares


@pytest.mark.parametrize(
    ("claims", "num_slots", "shares"),
    [
        ({"a": Claim()}, 8, {"a": 8}),
        ({"a": Claim(max_trials=3)}, 8, {"a": 3}),
        ({"a": Claim(), "b": Claim()}, 8, {"a": 4, "b": 4}),
        ({"a": Claim(), "b": Claim()}, 7, {"a": 4, "b": 3}),
        ({"a": Claim(priority=3), "b": Claim()}, 8, {"a": 6, "b": 2}),
        ({"a": Claim(max_trials=1), "b": Claim(), "c": Claim()}, 9, {"a": 1, "b": 4, "c": 4}),
        ({"a": Claim(priority=9, max_trials=2), "b": Claim()}, 8, {"a": 2, "b": 6}),
        ({"a": Claim(), "b": Claim(), "c": Claim()}, 2, {"a": 1, "b": 1, "c": 1}),
        ({"a": Claim(priority=100), "b": Claim()}, 8, {"a": 7, "b": 1}),
        ({"a": Claim(priority=100), "b": Claim(), "c": Claim(), "d": Claim()}, 8, {"a": 5, "b": 1, "c": 1, "d": 1}),
    ],
    ids=str,
)
def test_shares(claims: dict[str, Claim], num_slots: int, shares: dict[str, int]) -> None:
    assert fair_shares(claims, num_slots) == shares


CLAIMS = st.builds(Claim, priority=st.floats(0.1, 100), max_trials=st.one_of(st.none(), st.integers(1, 50)))


@given(st.dictionaries(st.sampled_from("abcdefgh"), CLAIMS, min_size=1), st.integers(1, 200))
def test_nobody_is_left_out_goes_over_its_limit_or_leaves_slots_idle_that_others_want(
    claims: dict[str, Claim], num_slots: int
) -> None:
    shares = fair_shares(claims, num_slots)
    assert all(share >= 1 for share in shares.values())
    for name, claim in claims.items():
        assert claim.max_trials is None or shares[name] <= claim.max_trials
    assert sum(shares.values()) <= max(num_slots, len(claims))
    if any(claim.max_trials is None for claim in claims.values()) and num_slots >= len(claims):
        assert sum(shares.values()) >= num_slots


def test_claim_of_a_study_that_left_or_fell_silent_goes_to_the_others() -> None:
    book = ShareBook(lifetime_s=0.2)
    assert book.claim("a", Claim(), 8) == 8
    assert book.claim("b", Claim(), 8) == 4
    assert book.claim("a", Claim(), 8) == 4
    book.leave("b")
    assert book.claim("a", Claim(), 8) == 8
    assert book.claim("c", Claim(priority=3), 8) == 6
    time.sleep(0.3)
    assert book.claim("a", Claim(), 8) == 8
