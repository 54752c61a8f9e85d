"""How much faster one trial is than another, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from runners.measure.spread import center_of_ratios

#: A difference within this many standard errors is no difference: about 95 % for a normal spread.
STANDARD_ERRORS_OF_A_TIE = 2.0


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one result is as another, and the standard error of that, if known."""

    value: float
    standard_error: float | None

    @property
    def is_tie(self) -> bool:
        """True where the two do not differ beyond the spread."""
        return abs(self.value - 1) <= STANDARD_ERRORS_OF_A_TIE * (self.standard_error or 0.0)


class Playoff(BaseModel):
    """A few trials that were timed in turn, so that whatever slowed the machine slowed all of them.

    Attributes:
        trials: Their numbers.
        step_times_s: Shape (num_trials, num_rounds); the times of one round were taken right after one another.
    """

    model_config = ConfigDict(frozen=True)

    trials: tuple[int, ...]
    step_times_s: tuple[tuple[float, ...], ...]

    def ratio(self, number: int, other: int) -> Ratio | None:
        """Speed of one trial over that of another, round by round; None where one of them took no part."""
        if number not in self.trials or other not in self.trials:
            return None
        mine = self.step_times_s[self.trials.index(number)]
        theirs = self.step_times_s[self.trials.index(other)]
        center = center_of_ratios([other_s / own_s for own_s, other_s in zip(mine, theirs, strict=True)])
        error = center.standard_error
        return Ratio(center.value, error if error == error else None)
