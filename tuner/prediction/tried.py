"""What a search knows of a policy that it measured, or is measuring."""

from __future__ import annotations

from dataclasses import dataclass

from runners.trial import TrialStatus, Verdict
from search_spaces.policy import RecomputePolicy


@dataclass(frozen=True)
class Tried:
    """A policy that was measured or is being measured.

    Attributes:
        status: None while it is in flight.
        time: Of a step, in any unit that is the same for all; None where it was not measured.
        standard_error: Of ``time``; None where it is not known.
        peak_bytes: Measured; the cap where the device refused the memory; None where nothing is known.
        is_feasible: Within the cap, and proven where that is asked for.
        recompute_verdict: Whether its placement trains the same model.
        split_verdict: Whether its division into micro-batches does; None where nothing is divided.
    """

    policy: RecomputePolicy
    status: TrialStatus | None = None
    time: float | None = None
    standard_error: float | None = None
    peak_bytes: int | None = None
    is_feasible: bool = False
    recompute_verdict: Verdict | None = None
    split_verdict: Verdict | None = None
