from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]


@pytest.mark.parametrize("how", ["typed", "memory_error"])
def test_the_largest_micro_batch_that_runs_is_taken(subject: Make, how: str) -> None:
    found = subject("resources.py:failing", {"how": how}, sizes=(8, 4, 2)).diagnose()
    assert found.failure is None
    assert found.plain.micro_batch_size == 2
    assert {cost.micro_batch_size for cost in found.unit_costs} == {2}


def test_what_goes_wrong_is_an_answer(subject: Make) -> None:
    found = subject("resources.py:failing", {"how": "runtime_error"}, sizes=(8, 2)).diagnose()
    assert found.plain is None
    assert "I have no memory of this place" in found.failure
    assert "\n" not in found.failure
