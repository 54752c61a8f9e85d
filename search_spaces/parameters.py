"""Typed search parameters, independent of any optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

ParameterValue: TypeAlias = int | float | str | bool


@dataclass(frozen=True)
class Choice:
    """One of a few values without an order."""

    name: str
    choices: tuple[ParameterValue, ...]


@dataclass(frozen=True)
class Integer:
    """A whole number from ``low`` to ``high``, both included."""

    name: str
    low: int
    high: int


Parameter: TypeAlias = Choice | Integer
