"""The seam between policies and optimizers: an encoding turns one into values of named parameters and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from search_spaces.parameters import Parameter, ParameterValue
from search_spaces.policy import RecomputePolicy


class SearchSpace(Protocol):
    """An encoding of every policy that may be tried."""

    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, always the same ones in the same order."""

    def decode(self, values: Mapping[str, ParameterValue]) -> RecomputePolicy:
        """The canonical policy that the values stand for. Every combination of allowed values is a policy."""

    def encode(self, policy: RecomputePolicy) -> dict[str, ParameterValue]:
        """Values with ``decode(encode(policy)) == policy.canonical()``.

        Raises:
            ValueError: This encoding cannot say the policy; the message names the list and the first such block.
        """

    def policies(self) -> Iterator[RecomputePolicy]:
        """Every distinct policy once, in a fixed order."""
