from __future__ import annotations

import math

import pytest

from tuner.machine_state import MachineState


@pytest.mark.parametrize("drift", [1.0, 1.04, 0.97])
def test_in_equal_states_there_is_no_doubt(drift: float) -> None:
    assert MachineState(0.2, drift).doubt(MachineState(0.203, 1.0)) == 0.0


def test_two_standard_errors_reach_as_far_as_the_states_differ() -> None:
    calm, busy = MachineState(0.2, 1.0), MachineState(0.3, 1.0)
    assert math.exp(2 * calm.doubt(busy)) == pytest.approx(1.5)
    assert busy.doubt(calm) == pytest.approx(calm.doubt(busy))


def test_a_state_that_changed_during_the_trial_counts_as_well() -> None:
    steady, changing = MachineState(0.2, 1.0), MachineState(0.2, 0.8)
    assert math.exp(2 * steady.doubt(changing)) == pytest.approx(1 / 0.8)
    assert changing.doubt(changing) == pytest.approx(2 * steady.doubt(changing))
