"""How busy a machine was during a trial, as the reference beside it shows, and how far that puts speeds in doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Reference steps differ by this much between trials, in logarithms, on a machine that is left alone.
_UNDISTURBED = 0.05
#: Standard errors on either side within which the truth lies.
_ERRORS = 2.0


@dataclass(frozen=True)
class MachineState:
    """During one trial.

    Attributes:
        reference_time_s: What the reference took.
        drift_ratio: What it took in the later half of the trial over the earlier half; 1 where not known.
    """

    reference_time_s: float
    drift_ratio: float

    def doubt(self, other: MachineState) -> float:
        """Relative standard error of the ratio of two relative speeds that were measured in these states.

        What slows a machine does not slow a step and the reference alike: small kernels wait for each other more than
        large ones do. So relative speed depends on the state, and how much each trial's steps depend on it, nobody
        knows. By as much as the states differ, the truth may lie off, either way; in equal states there is no doubt.
        """
        between = math.log(self.reference_time_s / other.reference_time_s)
        differences = (abs(between), abs(math.log(self.drift_ratio)), abs(math.log(other.drift_ratio)))
        return sum(difference for difference in differences if difference > _UNDISTURBED) / _ERRORS
