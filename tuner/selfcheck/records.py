"""What a self-check is given and what it answers, as plain JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from runners.trial import WorkloadSpec


class SelfCheckSpec(BaseModel):
    """An export to be checked.

    Attributes:
        policy: As in policy.yaml.
        target: Name of the format.
        version: Of the stack, by the name of its entry.
        text: The exported file.
    """

    model_config = ConfigDict(frozen=True)

    workload: WorkloadSpec
    policy: dict[str, Any]
    target: str
    version: str
    through_python: bool
    text: str


class SelfCheckReport(BaseModel):
    """What the stack recomputes under the file, beside what the policy recomputes.

    Attributes:
        refusal: Why nothing could be found out; None where it was.
        stack: The stack and its installed release.
        batch: What the stack understood of the batch, by its own names.
        num_recomputed: Modules without children that run again in backward, in both.
        only_policy: Names of those that only the policy recomputes.
        only_stack: Names of those that only the stack recomputes.
    """

    model_config = ConfigDict(frozen=True)

    refusal: str | None = None
    stack: str = ""
    batch: dict[str, int] = {}
    num_recomputed: int = 0
    only_policy: list[str] = []
    only_stack: list[str] = []

    @property
    def agrees(self) -> bool:
        return self.refusal is None and not self.only_policy and not self.only_stack
