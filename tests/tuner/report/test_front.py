from __future__ import annotations

import pytest
from simulation import MIB, results_of, trial

from tuner.report.front import trials_timed_in_turn
from tuner.speed_ratio import Playoff


def test_trials_of_the_playoff_stand_where_it_puts_them() -> None:
    trials = [trial(0), trial(1, "block"), trial(2, "mlp")]
    speeds = [result.relative_speed for result in trials]
    playoff = Playoff(trials=(1, 0), step_times_s=((2.0,) * 9, (1.0,) * 9))
    drawn = trials_timed_in_turn(results_of(*trials, cap_bytes=30 * MIB, playoff=playoff))
    assert speeds[0] is not None
    assert drawn[0].relative_speed == speeds[0]
    assert drawn[1].relative_speed == pytest.approx(0.5 * speeds[0])
    assert drawn[2].relative_speed == speeds[2]


def test_without_a_playoff_they_stand_where_they_were_measured() -> None:
    trials = [trial(0), trial(1, "block")]
    drawn = trials_timed_in_turn(results_of(*trials, cap_bytes=30 * MIB))
    assert [point.relative_speed for point in drawn] == [result.relative_speed for result in trials]
