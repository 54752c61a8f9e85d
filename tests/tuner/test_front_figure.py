from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tuner.front_figure import FrontKind, FrontTrial, draw_front, front_html, front_points

GIB = 2**30
CAP = 4 * GIB
_TRIAL = FrontTrial(
    number=0,
    status="COMPLETED",
    policy_summary="block @2x4",
    micro_batch_size=2,
    gradient_accumulation_steps=4,
    feasible=True,
    on_front=False,
    is_best=False,
    samples_per_second=10.0,
    tokens_per_second=2560.0,
    relative_speed=1.25,
    peak_memory_bytes=3 * GIB,
    verdict="MATCH",
)
_BEST = replace(_TRIAL, number=1, on_front=True, is_best=True, policy_summary="mlp[0-5] @4x2", tokens_per_second=3000.0)
_FRONT = replace(_TRIAL, number=2, on_front=True, peak_memory_bytes=GIB, tokens_per_second=2000.0)
_OVER = replace(_TRIAL, number=3, feasible=False, peak_memory_bytes=5 * GIB)
_WRONG = replace(_TRIAL, number=4, feasible=False, verdict="MISMATCH")
_UNPROVEN = replace(_TRIAL, number=5, feasible=False, verdict="UNVERIFIED")
_NO_ROOM = replace(
    _TRIAL,
    number=6,
    status="OUT_OF_MEMORY",
    feasible=False,
    samples_per_second=None,
    tokens_per_second=None,
    relative_speed=None,
    peak_memory_bytes=None,
    verdict=None,
    reason="asked for 9 GiB",
)
_ALL = [_TRIAL, _BEST, _FRONT, _OVER, _WRONG, _UNPROVEN, _NO_ROOM]


@pytest.mark.parametrize(
    ("trial", "kind"),
    [
        (_TRIAL, FrontKind.FEASIBLE),
        (_BEST, FrontKind.BEST),
        (_FRONT, FrontKind.FRONT),
        (_OVER, FrontKind.INFEASIBLE),
        (_WRONG, FrontKind.MISMATCH),
        (_UNPROVEN, FrontKind.UNVERIFIED),
        (replace(_WRONG, peak_memory_bytes=5 * GIB), FrontKind.MISMATCH),
        (replace(_UNPROVEN, peak_memory_bytes=5 * GIB), FrontKind.INFEASIBLE),
    ],
)
def test_kind_of_a_point(trial: FrontTrial, kind: FrontKind) -> None:
    assert front_points([trial], CAP).points[0].kind is kind


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
    data = front_points([replace(_TRIAL, tokens_per_second=None), _NO_ROOM], CAP)
    assert data.speed_title == "throughput (samples/s)"
    assert data.points[0].speed == 10.0
    assert data.points[0].hover[1] == "10 samples/s as measured"


def test_speed_is_relative_to_the_baseline_where_all_have_a_reference() -> None:
    baseline = replace(_TRIAL, number=9, is_baseline=True, relative_speed=2.5, tokens_per_second=1.0)
    data = front_points([baseline, _TRIAL], CAP)
    assert data.speed_title == "speed (baseline = 1)"
    assert sorted(point.speed for point in data.points) == [0.5, 1.0]
    without = front_points([baseline, replace(_TRIAL, relative_speed=None)], CAP)
    assert without.speed_title == "throughput (tokens/s)"


def test_small_peaks_are_in_mib() -> None:
    data = front_points([replace(_TRIAL, peak_memory_bytes=3 * 2**20)], 4 * 2**20)
    assert (data.points[0].peak_memory, data.memory_cap, data.memory_unit) == (3.0, 4.0, "MiB")


def test_trial_without_a_measurement_is_listed_not_drawn() -> None:
    data = front_points(_ALL, CAP)
    assert [(trial.number, trial.status, trial.reason) for trial in data.unmeasured] == [
        (6, "OUT_OF_MEMORY", "asked for 9 GiB")
    ]
    notes = [annotation.text for annotation in draw_front(data).layout.annotations]
    assert "Without a measurement:<br>trial 6: OUT_OF_MEMORY, block @2x4 (asked for 9 GiB)" in notes


def test_long_list_of_unmeasured_trials_is_cut_with_a_count() -> None:
    trials = [replace(_NO_ROOM, number=number) for number in range(10)]
    (note,) = [
        annotation.text
        for annotation in draw_front(front_points(trials, CAP)).layout.annotations
        if "and" in annotation.text
    ]
    assert note.endswith("<br>and 4 more")
    assert note.count("trial ") == 6


def test_every_kind_is_told_apart_by_shape_or_size_as_well_as_by_color() -> None:
    traces = [trace for trace in draw_front(front_points(_ALL, CAP)).data if trace.mode == "markers"]
    assert {trace.name for trace in traces} == {kind.value for kind in FrontKind}
    assert len({(trace.marker.symbol, trace.marker.size) for trace in traces}) == len(FrontKind)


def test_cap_is_drawn_where_it_is() -> None:
    figure = draw_front(front_points(_ALL, CAP))
    assert [(line.x0, line.x1) for line in figure.layout.shapes] == [(4.0, 4.0)]
    assert "cap 4 GiB" in [annotation.text for annotation in figure.layout.annotations]


def test_without_a_cap_no_line_is_drawn() -> None:
    assert not draw_front(front_points([_TRIAL], None)).layout.shapes


def test_baseline_is_labelled() -> None:
    figure = draw_front(front_points([replace(_TRIAL, is_baseline=True), _BEST], CAP))
    (label,) = [annotation for annotation in figure.layout.annotations if annotation.text == "baseline"]
    assert (label.x, label.y) == (3.0, 1.0)


def test_front_line_is_a_staircase_through_the_front() -> None:
    line = draw_front(front_points(_ALL, CAP)).data[0]
    assert (line.mode, line.line.shape, list(line.x), list(line.y)) == ("lines", "hv", [1.0, 3.0], [2000.0, 3000.0])


def test_names_of_the_user_are_text_and_never_markup() -> None:
    trial = replace(_TRIAL, policy_summary="<img src=x>: mlp @2x4", is_baseline=True)
    (markers,) = [trace for trace in draw_front(front_points([trial], CAP)).data if trace.mode == "markers"]
    assert markers.text[0].startswith("<b>&lt;img src=x&gt;: mlp @2x4</b><br>")
    assert "<img src=x>" not in front_html(front_points([trial], CAP))


def test_study_without_any_trial_is_still_a_figure() -> None:
    assert draw_front(front_points([], CAP)).layout.xaxis.title.text == "peak memory (GiB)"


def test_html_needs_nothing_from_outside() -> None:
    page = front_html(front_points(_ALL, CAP))
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=", page) == []
    assert "mlp[0-5] @4x2" in page
    assert len(page) > 1_000_000
