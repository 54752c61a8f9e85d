from __future__ import annotations

from collections.abc import Iterator

import pytest
from traced_steps import plain_step, saver, tensor

from tuner.timeline.data import HELD, OUTSIDE, REST, RowGroup, common_scales, tensor_facts, timeline_data
from tuner.timeline.figure import draw_timeline, figure_height_px

DATA = timeline_data(plain_step())


def test_rows_go_as_forward_goes_block_by_block() -> None:
    assert DATA.groups == (RowGroup(OUTSIDE, 0, 0), RowGroup("h.0", 1, 3), RowGroup(OUTSIDE, 4, 5))
    assert [bar.row for bar in DATA.bars] == list(range(6))
    assert [bar.kind for bar in DATA.bars] == [OUTSIDE, "attention", REST, "mlp", OUTSIDE, HELD]


def test_parameters_and_tiny_held_tensors_are_no_bars() -> None:
    assert len(DATA.bars) == len(plain_step().tensors) - 2


def test_a_bar_reaches_from_birth_to_last_use_and_its_end_to_the_freeing() -> None:
    first, last = DATA.bars[0], DATA.bars[4]
    assert (first.start_ms, first.used_ms, first.end_ms) == pytest.approx((1.0, 89.0, 90.0))
    assert last.end_ms == 100.0, "what outlives the step is drawn to its end"
    assert [bar.is_rebuilt for bar in DATA.bars] == [False, False, False, True, False, False]


def test_labels_are_short_below_their_block() -> None:
    assert DATA.bars[1].label == "attn.q mm, 1.0 MiB"
    assert DATA.bars[2].label == "norm native_layer_norm, 1.0 MiB"
    assert DATA.bars[4].label == "mm, 1.0 MiB"


def test_the_facts_name_every_saver_up_to_a_few() -> None:
    facts = tensor_facts(plain_step().tensors[1])
    assert facts == (
        "1.0 MiB activation, h.0, attention",
        "h.0.attn.q: aten::mm keeps [2, 16] float32, for MmBackward0",
        "h.0.attn.k: aten::mm keeps [2, 16] float32, for MmBackward0",
        "made by h: aten::mm, in forward",
        "born 9.00 ms, kept 10.00 ms, last use 80.00 ms, freed 90.00 ms",
    )
    many = tensor("h.0", None, *(saver("h.0", 0.01, 0.08) for _ in range(9)))
    assert tensor_facts(many)[6] == "and 4 more"


def test_each_kind_has_a_color_and_a_unit_of_one_s_own_has_one_too() -> None:
    step = plain_step()
    router = step.model_copy(
        update={"tensors": (*step.tensors, tensor("h.0", "router", saver("h.0.router", 0.02, 0.06)))}
    )
    hues = dict(timeline_data(router).kinds)
    assert set(hues) == {OUTSIDE, "attention", REST, "mlp", HELD, "router"}
    assert len(set(hues.values())) == len(hues)


def test_figures_on_common_scales_have_equal_axes() -> None:
    larger = plain_step().model_copy(update={"traced_step_time_s": 0.2, "peak_memory_bytes": 40 * 2**20})
    steps = [DATA, timeline_data(larger)]
    scales = common_scales(steps)
    figures = [draw_timeline(step, scales) for step in steps]
    assert {tuple(figure.layout.xaxis.range) for figure in figures} == {(0, 200.0)}
    assert [figure.layout.yaxis2.range[1] for figure in figures] == pytest.approx([1.12 * 40] * 2)


def test_every_bar_is_one_row_high() -> None:
    bars = [trace for trace in draw_timeline(DATA, common_scales([DATA])).data if trace.type == "bar"]
    assert len(bars) > 5
    assert {trace.width for trace in bars} == {0.98}


def test_every_color_is_the_page_s() -> None:
    colors = list(_colors(draw_timeline(DATA, common_scales([DATA])).to_dict()))
    assert len(colors) > 20
    assert {color for color in colors if not color.startswith("var(--")} == set()


def test_the_height_grows_with_the_rows() -> None:
    fewer = plain_step().model_copy(update={"tensors": plain_step().tensors[:2]})
    assert figure_height_px(DATA) - figure_height_px(timeline_data(fewer)) == 4 * 19


def test_every_part_of_the_step_is_shaded() -> None:
    shapes = draw_timeline(DATA, common_scales([DATA])).layout.shapes
    ends = [end for shape in shapes if shape.type == "rect" for end in (shape.x0, shape.x1)]
    assert ends == pytest.approx([0.0, 50.0, 50.0, 90.0, 90.0, 100.0])


def _colors(value: object) -> Iterator[str]:
    """Every color that is set, outside of plotly's own template."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "template":
                continue
            if key.endswith("color") and isinstance(inner, str):
                yield inner
            yield from _colors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _colors(inner)
