from __future__ import annotations

from simulation import MIB, failure, results_of, trial

from runners.trial import TrialStatus
from tuner.report.memory_split import memory_split
from tuner.report.stacked_bars import StackedBars
from tuner.report.time_split import time_split
from tuner.summary import summarize


def tips(bars: StackedBars | None, index: int) -> list[str]:
    assert bars is not None
    return [part.tip for part in bars.bars[index].parts]


def test_time_of_the_winner_and_of_what_it_is_compared_with() -> None:
    results = results_of(trial(0), trial(1, "block"), trial(2, "none", 1))
    bars = time_split(results, summarize(results))
    assert bars is not None
    assert [bar.title for bar in bars.bars] == [
        "Winner, every block recomputed, trial 1",
        "Plain training that fits, trial 2",
        "Baseline, trial 0",
    ]
    assert tips(bars, 0) == [
        "forward 300 ms, 23%",
        "backward 600 ms, 46%",
        "recompute 300 ms, 23%",
        "optimizer 100 ms, 8%",
    ]


def test_what_the_parts_leave_of_a_step_is_shown() -> None:
    results = results_of(trial(0, "block", step_time_s=1.5))
    assert tips(time_split(results, summarize(results)), 0)[-1] == "the rest of the step 200 ms, 13%"
    close = results_of(trial(0, "block", step_time_s=1.31))
    assert tips(time_split(close, summarize(close)), 0)[-1] == "optimizer 100 ms, 8%", "medians are not that precise"


def test_memory_by_kind_against_the_cap() -> None:
    results = results_of(trial(0), trial(1, "block"))
    bars = memory_split(results, summarize(results))
    assert tips(bars, 0) == ["parameters 10.0 MiB, 83%", "activations 2.0 MiB, 17%"]
    assert bars is not None
    assert bars.mark is not None
    assert bars.mark.label == "cap 20.0 MiB"
    assert bars.mark.at_pct == 100 * 20 / (1.02 * 26)


def test_what_an_allocator_reserved_beyond_the_tensors_is_part_of_the_bar() -> None:
    results = results_of(trial(0, "block", peak_memory_bytes=15 * MIB))
    assert tips(memory_split(results, summarize(results)), 0)[-1] == "reserved, not in use 3.0 MiB, 20%"


def test_without_a_measurement_there_is_nothing_to_draw() -> None:
    results = results_of(failure(0, TrialStatus.OUT_OF_MEMORY, "too large"))
    assert time_split(results, summarize(results)) is None
    assert memory_split(results, summarize(results)) is None


def test_of_a_long_front_some_of_each_stretch_are_drawn() -> None:
    front = [trial(n, "block", relative_speed=1.0 + n / 100, peak_memory_bytes=(2 + n) * MIB) for n in range(1, 17)]
    results = results_of(trial(0), *front)
    bars = memory_split(results, summarize(results))
    assert bars is not None
    shown = [bar.title for bar in bars.bars if bar.title.startswith("Front")]
    assert (len(shown), shown[0], shown[-1]) == (8, "Front, trial 15", "Front, trial 1")
