"""The seam of self-checks: what one stack does with an exported file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn


@dataclass(frozen=True)
class Exported:
    """An exported file and what belongs to it.

    Attributes:
        file: Holds the exported text.
        policy_file: A policy.yaml with the policy, for exports through Python.
        version: Of the stack, by the name of its entry.
    """

    file: Path
    policy_file: Path
    version: str
    through_python: bool


class CannotCheckError(Exception):
    """This part of a stack does not run here; the message says why."""


class StackCheck(Protocol):
    """Places recompute on a model as the stack does under the file."""

    package: str

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        """Changes the model in place, and gives back what the stack understood of the batch, by its own names.

        Raises:
            CannotCheckError: It cannot be done here.
        """
