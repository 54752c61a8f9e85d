from __future__ import annotations

from typing import Any

import pytest
from simulation import results_of, trial

from runners.trial import TrialStatus, Verdict, Verification
from tuner.report.front_figure import draw_front
from tuner.report.front_points import FrontData, FrontKind, around_the_cap, front_points
from tuner.results import TrialRecord

GIB = 2**30
CAP = 4 * GIB


def changed(record: TrialRecord, **changes: Any) -> TrialRecord:
    return record.model_copy(update=changes)


def judged(record: TrialRecord, number: int, verdict: Verdict) -> TrialRecord:
    """Not feasible, with this verdict."""
    return changed(record, number=number, feasible=False, verification=Verification(verdict=verdict))


_TRIAL = changed(
    results_of(trial(0, "block")).trials[0],
    policy_summary="block @2x4",
    micro_batch_size=2,
    gradient_accumulation_steps=4,
    on_front=False,
    is_best=False,
    samples_per_second=10.0,
    tokens_per_second=2560.0,
    relative_speed=1.25,
    relative_speed_spread=None,
    peak_memory_bytes=3 * GIB,
)
_BEST = changed(_TRIAL, number=1, on_front=True, is_best=True, policy_summary="mlp[0-5] @4x2", tokens_per_second=3000.0)
_FRONT = changed(_TRIAL, number=2, on_front=True, peak_memory_bytes=GIB, tokens_per_second=2000.0)
_OVER = changed(_TRIAL, number=3, feasible=False, peak_memory_bytes=5 * GIB)
_WRONG = judged(_TRIAL, 4, Verdict.MISMATCH)
_UNPROVEN = judged(_TRIAL, 5, Verdict.UNVERIFIED)
_NO_ROOM = changed(
    _TRIAL,
    number=6,
    status=TrialStatus.OUT_OF_MEMORY,
    feasible=False,
    samples_per_second=None,
    tokens_per_second=None,
    relative_speed=None,
    peak_memory_bytes=None,
    verification=None,
    reason="asked for 9 GiB",
)
_ALL = [_TRIAL, _BEST, _FRONT, _OVER, _WRONG, _UNPROVEN, _NO_ROOM]


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (_TRIAL, FrontKind.FEASIBLE),
        (_BEST, FrontKind.BEST),
        (_FRONT, FrontKind.FRONT),
        (_OVER, FrontKind.INFEASIBLE),
        (_WRONG, FrontKind.MISMATCH),
        (_UNPROVEN, FrontKind.UNVERIFIED),
        (changed(_WRONG, peak_memory_bytes=5 * GIB), FrontKind.MISMATCH),
        (changed(_UNPROVEN, peak_memory_bytes=5 * GIB), FrontKind.INFEASIBLE),
    ],
)
def test_kind_of_a_point(record: TrialRecord, kind: FrontKind) -> None:
    assert front_points([record], CAP).points[0].kind is kind


def test_points_are_in_gib_and_in_order_of_memory() -> None:
    data = front_points(_ALL, CAP)
    assert [point.number for point in data.points] == [2, 0, 4, 5, 1, 3]
    assert [point.peak_memory for point in data.points] == [1.0, 3.0, 3.0, 3.0, 3.0, 5.0]
    assert (data.memory_cap, data.memory_unit, data.speed_title) == (4.0, "GiB", "throughput (tokens/s)")


def test_front_runs_from_least_memory_to_the_best() -> None:
    assert [point.number for point in front_points(_ALL, CAP).front] == [2, 1]


def test_hover_tells_the_policy_and_what_it_reached() -> None:
    assert front_points([_BEST], CAP).points[0].hover == (
        "mlp[0-5] @4x2",
        "3,000 tokens/s as measured",
        "peak 3 GiB",
        "micro-batch 2 x 4 accumulation steps",
        "verdict MATCH",
        "trial 1: best",
    )


def test_samples_are_drawn_where_they_are_not_sequences() -> None:
    data = front_points([changed(_TRIAL, tokens_per_second=None), _NO_ROOM], CAP)
    assert data.speed_title == "throughput (samples/s)"
    assert data.points[0].speed == 10.0
    assert data.points[0].hover[1] == "10 samples/s as measured"


def test_speed_is_relative_to_the_baseline_where_all_have_a_reference() -> None:
    baseline = changed(_TRIAL, number=9, is_baseline=True, relative_speed=2.5, tokens_per_second=1.0)
    data = front_points([baseline, _TRIAL], CAP)
    assert data.speed_title == "speed (baseline = 1)"
    assert sorted(point.speed for point in data.points) == [0.5, 1.0]
    without = front_points([baseline, changed(_TRIAL, relative_speed=None)], CAP)
    assert without.speed_title == "throughput (tokens/s)"


def test_small_peaks_are_in_mib() -> None:
    data = front_points([changed(_TRIAL, peak_memory_bytes=3 * 2**20)], 4 * 2**20)
    assert (data.points[0].peak_memory, data.memory_cap, data.memory_unit) == (3.0, 4.0, "MiB")


def test_trial_without_a_measurement_stands_below_the_plot_at_its_predicted_peak() -> None:
    data = front_points([_TRIAL, changed(_NO_ROOM, predicted_peak_memory_bytes=9 * GIB)], CAP)
    (mark,) = data.unmeasured
    assert (mark.kind, mark.predicted_peak) == (FrontKind.OUT_OF_MEMORY, 9.0)
    assert mark.hover == ("block @2x4", "predicted peak 9 GiB", "trial 6: out of memory", "asked for 9 GiB")
    trace = _trace(data, FrontKind.OUT_OF_MEMORY)
    assert (list(trace.x), trace.yaxis, trace.xaxis) == ([9.0], "y2", None)


def test_trials_without_any_peak_share_one_mark_that_lists_a_few() -> None:
    trials = [changed(_NO_ROOM, number=number) for number in range(10)]
    (mark,) = front_points(trials, CAP).unmeasured
    assert (mark.kind, mark.predicted_peak) == (FrontKind.OUT_OF_MEMORY, None)
    assert mark.hover[0] == "10 trials: out of memory, peak not known"
    assert mark.hover[1] == "trial 0, block @2x4: asked for 9 GiB"
    assert mark.hover[-1] == "and 4 more"
    assert len(mark.hover) == 8


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (TrialStatus.OUT_OF_MEMORY, FrontKind.OUT_OF_MEMORY),
        (TrialStatus.FAILED, FrontKind.FAILED),
        (TrialStatus.TIMED_OUT, FrontKind.FAILED),
        (TrialStatus.NODE_LOST, FrontKind.UNFINISHED),
        (TrialStatus.CANCELLED, FrontKind.UNFINISHED),
    ],
)
def test_ways_to_end_without_a_measurement_have_marks_of_their_own(status: TrialStatus, kind: FrontKind) -> None:
    (mark,) = front_points([changed(_NO_ROOM, status=status)], CAP).unmeasured
    assert mark.kind is kind


def test_strip_is_there_only_where_something_was_not_measured() -> None:
    assert "yaxis2" not in draw_front(front_points([_TRIAL], CAP)).layout
    figure = draw_front(front_points(_ALL, CAP))
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0], "below the plot"


def _trace(data: FrontData, kind: FrontKind) -> Any:
    (trace,) = [trace for trace in draw_front(data).data if trace.name == kind.value]
    return trace


def test_every_kind_is_told_apart_by_shape_or_size_as_well_as_by_color() -> None:
    others = [changed(_NO_ROOM, status=TrialStatus.FAILED), changed(_NO_ROOM, status=TrialStatus.CANCELLED)]
    traces = [trace for trace in draw_front(front_points([*_ALL, *others], CAP)).data if trace.mode == "markers"]
    assert {trace.name for trace in traces} == {kind.value for kind in FrontKind}
    assert len({(trace.marker.symbol, trace.marker.size) for trace in traces}) == len(FrontKind)


def test_cap_is_drawn_where_it_is() -> None:
    figure = draw_front(front_points(_ALL, CAP))
    assert [(line.x0, line.x1) for line in figure.layout.shapes] == [(4.0, 4.0)]
    assert "cap 4 GiB" in [annotation.text for annotation in figure.layout.annotations]


def test_baseline_is_labelled() -> None:
    figure = draw_front(front_points([changed(_TRIAL, is_baseline=True), _BEST], CAP))
    (label,) = [annotation for annotation in figure.layout.annotations if annotation.text == "baseline"]
    assert (label.x, label.y) == (3.0, 1.0)


def test_front_line_is_a_staircase_through_the_front() -> None:
    line = draw_front(front_points(_ALL, CAP)).data[0]
    assert (line.mode, line.line.shape, list(line.x), list(line.y)) == ("lines", "hv", [1.0, 3.0], [2000.0, 3000.0])


def test_a_winner_by_a_tie_does_not_bend_the_front_line_down() -> None:
    ahead = changed(_FRONT, number=8, peak_memory_bytes=2 * GIB, tokens_per_second=3100.0)
    line = draw_front(front_points([_FRONT, ahead, _BEST], CAP)).data[0]
    assert (list(line.x), list(line.y)) == ([1.0, 2.0], [2000.0, 3100.0])


def test_names_of_the_user_are_text_and_never_markup() -> None:
    named = changed(_TRIAL, policy_summary="<img src=x>: mlp @2x4", is_baseline=True)
    (markers,) = [trace for trace in draw_front(front_points([named], CAP)).data if trace.mode == "markers"]
    assert markers.text[0].startswith("<b>&lt;img src=x&gt;: mlp @2x4</b><br>")


def test_study_without_any_trial_is_still_a_figure() -> None:
    assert draw_front(front_points([], CAP)).layout.xaxis.title.text == "peak memory (GiB)"


def test_a_front_that_would_be_squeezed_has_a_view_of_its_own() -> None:
    far = changed(_TRIAL, number=9, feasible=False, peak_memory_bytes=40 * GIB, tokens_per_second=9000.0)
    assert around_the_cap(front_points(_ALL, CAP)) is None, "the front takes up most of the width"
    ranges = around_the_cap(front_points([*_ALL, far], CAP))
    assert ranges is not None
    least, most = ranges.peak_memory
    assert least < 1.0 < 4.0 < most < 6.0, "the front and the cap are within, and what is far is not"
    assert 1000 < ranges.speed[0] < 2000 < 3000 < ranges.speed[1] < 4000


def test_spread_is_drawn_on_the_front_and_told_on_hover() -> None:
    baseline = changed(_TRIAL, number=9, is_baseline=True, relative_speed=2.5)
    best = changed(_BEST, relative_speed=3.0, relative_speed_spread=0.05)
    data = front_points([baseline, best], CAP)
    point = data.of_kind(FrontKind.BEST)[0]
    assert point.hover[1] == "1.20 x the baseline's speed +-0.02"
    assert list(_trace(data, FrontKind.BEST).error_y.array) == [pytest.approx(0.04)]


def test_thousands_of_points_are_thinned_but_never_the_front() -> None:
    crowd = [
        changed(_TRIAL, number=n, tokens_per_second=1000.0 + n % 7, peak_memory_bytes=GIB * (1 + n % 3))
        for n in range(5000)
    ]
    front = [changed(_FRONT, number=5000 + n, tokens_per_second=5000.0 + n / 1e6) for n in range(400)]
    figure = draw_front(front_points([*crowd, *front], CAP))
    num_drawn = {trace.name: len(trace.x) for trace in figure.data if trace.mode == "markers"}
    assert num_drawn == {FrontKind.FEASIBLE.value: 21, FrontKind.FRONT.value: 400}
