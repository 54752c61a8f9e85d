"""What a sampler is tried on: every policy's time and peak are known, so that a search can be judged by the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runners.replay_runner import Outcome
from search_spaces.choices import SearchChoices
from search_spaces.policy import RecomputePolicy
from tuner.forecast import Forecast
from tuner.objective import Objective


@dataclass(frozen=True)
class Actual:
    """What a policy really takes.

    Attributes:
        time: One over the speed that the problem's trials are ranked by.
        peak_bytes: What the cap is tested against.
    """

    time: float
    peak_bytes: float


@dataclass(frozen=True)
class Best:
    """What an exhaustive search would find.

    Attributes:
        time: Of the fastest policy within the cap.
        front: The hypervolume that all policies together cover; see `tuner.prediction.front_filling.hypervolume`.
    """

    time: float
    front: float


class SearchProblem(Protocol):
    """One model on one device under one cap."""

    @property
    def name(self) -> str: ...

    @property
    def choices(self) -> SearchChoices: ...

    @property
    def objective(self) -> Objective: ...

    @property
    def enforces_cap(self) -> bool:
        """A trial over the cap ends as OUT_OF_MEMORY, and nobody learns its time and peak."""

    @property
    def best(self) -> Best: ...

    def forecast(self) -> Forecast:
        """What the model-guided sampler is given."""

    def outcome(self, seed: int) -> Outcome:
        """What trials measure; noise, where there is some, follows from the seed and the trial's number."""

    def actual(self, policy: RecomputePolicy) -> Actual | None:
        """Without noise where that is known, else as measured; None where it never was."""
