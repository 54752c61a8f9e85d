"""What a comparison of two studies holds: plain records, printed as tables or as one JSON document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: How a figure is written for people: bytes, seconds, shares and rates each in their own way.
Form = Literal["text", "count", "bytes", "seconds", "share", "rate"]
#: What a ratio of speeds was taken from.
Basis = Literal["relative_speed", "throughput"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class Fact(_Record):
    """Something that was asked for or found, and is not the same in both studies.

    Attributes:
        name: As in results.json, dotted; `search.` left out.
        a: None where the file of study A does not hold it, or holds null.
    """

    name: str
    a: Any
    b: Any


class Figure(_Record):
    """Something that both winners have, the same or not.

    Attributes:
        name: As in results.json where it stands there.
    """

    name: str
    form: Form
    a: Any
    b: Any


class SpeedRatio(_Record):
    """How many times as fast B is as A.

    Attributes:
        standard_error: Of what was measured within the studies; None where it is not known. What changed on the machine
            between them is in it only with basis ``relative_speed``.
        basis: ``relative_speed`` where both interleaved the same reference steps on the same device; else
            ``throughput``, in tokens, or in samples where they are no sequences.
    """

    value: float
    standard_error: float | None
    basis: Basis


class BlockDifference(_Record):
    """Consecutive blocks that the winners treat differently.

    Attributes:
        blocks: Path of the list.
        a: Action of study A's winner, ``segment(3)`` for segments of three blocks.
    """

    blocks: str
    first: int
    last: int
    a: str
    b: str


class SharedPolicy(_Record):
    """A policy that was measured in both studies.

    Attributes:
        policy: In short.
        trial_a: Number of the trial in study A.
        best_in: The studies that it won.
        speed_ratio: B over A.
        peak_ratio: B over A.
    """

    policy: str
    trial_a: int
    trial_b: int
    best_in: tuple[Literal["a", "b"], ...]
    feasible_a: bool
    feasible_b: bool
    step_time_a_s: float
    step_time_b_s: float
    speed_ratio: SpeedRatio
    peak_a_bytes: int | None
    peak_b_bytes: int | None
    peak_ratio: float | None


class Side(_Record):
    """One of the two studies."""

    study: str
    folder: str
    status: str
    best: int
    policy: str
    policy_key: str


class Comparison(_Record):
    """Two studies at the same global batch.

    Attributes:
        same: Both are one study, or a copy of it.
        cautions: What weakens the comparison, one sentence each.
        speed_ratio: Of the winners, B over A.
        differences: What the studies asked for or found differently, before any trial.
        figures: Of the winners.
        blocks: Where the winners' placements differ; None where their lists of blocks are not the same.
        summary: What to make of it.
    """

    schema_version: int = 1
    a: Side
    b: Side
    global_batch_size: int
    same: bool
    cautions: tuple[str, ...]
    summary: tuple[str, ...]
    speed_ratio: SpeedRatio | None
    differences: tuple[Fact, ...]
    figures: tuple[Figure, ...]
    blocks: tuple[BlockDifference, ...] | None
    measured_in_both: tuple[SharedPolicy, ...] = Field(description="The fastest in A first.")
