"""Whether two arguments of a model's modules are one and the same, as far as recompute may count on it."""

from __future__ import annotations

from typing import Any


def same_values(left: Any, right: Any) -> bool:
    """The same object, or containers of the same objects, or equal plain values. Equal tensors are not the same."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same_values, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_values(left[key], right[key]) for key in left)
    return isinstance(left, bool | int | float | str) and bool(left == right)
