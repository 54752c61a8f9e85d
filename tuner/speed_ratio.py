"""How much faster one trial is than another, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from runners.measure.speed_comparison import compare_speeds

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
        processor_shares: Processor seconds over wall seconds of each of these steps; empty where not known.
    """

    model_config = ConfigDict(frozen=True)

    trials: tuple[int, ...]
    step_times_s: tuple[tuple[float, ...], ...]
    processor_shares: tuple[tuple[float, ...], ...] = ()

    def ratio(self, number: int, other: int) -> Ratio | None:
        """Speed of one trial over that of another, from their calm rounds; None where one of them took no part."""
        if number not in self.trials or other not in self.trials:
            return None
        mine, theirs = self.trials.index(number), self.trials.index(other)
        shares = [self.processor_shares[index] for index in (mine, theirs)] if self.processor_shares else []
        center = compare_speeds(self.step_times_s[mine], self.step_times_s[theirs], shares)
        error = center.standard_error
        return Ratio(center.value, error if error == error else None)
