from __future__ import annotations

from dataclasses import replace

from simulated_profile import GRADIENTS, OPTIMIZER_STATES, PARAMETERS, PROFILE
from simulation import MIB, policy

from search_spaces.memory_profile import Stretch
from search_spaces.memory_timeline import MemoryTimeline
from tuner.planning.plain_memory import plain_memory


def test_parts_add_up_to_the_peak() -> None:
    timeline = MemoryTimeline(PROFILE)
    for size in (1, 2):
        assert plain_memory(timeline, size).peak == timeline.peak_bytes(policy("none", size))


def test_gradients_of_earlier_micro_batches_are_alive() -> None:
    parts = plain_memory(MemoryTimeline(PROFILE), 1)
    assert (parts.parameters, parts.gradients, parts.optimizer_states) == (PARAMETERS, GRADIENTS, OPTIMIZER_STATES)
    assert (parts.others, parts.activations, parts.in_update) == (3 * MIB, 8 * MIB, False)


def test_without_accumulation_there_are_none_when_forward_ends() -> None:
    parts = plain_memory(MemoryTimeline(PROFILE), 2)
    assert (parts.gradients, parts.others, parts.activations) == (0, 4 * MIB, 16 * MIB)


def test_all_gradients_are_alive_where_the_update_is_highest() -> None:
    steps = tuple(replace(step, update=Stretch(0, 50 * MIB)) for step in PROFILE.steps)
    parts = plain_memory(MemoryTimeline(replace(PROFILE, steps=steps)), 2)
    assert (parts.gradients, parts.activations, parts.in_update) == (GRADIENTS, 50 * MIB, True)
