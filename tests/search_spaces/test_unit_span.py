from __future__ import annotations

import pytest

from search_spaces.unit_span import UnitSpan, is_spans, parse_spans, spans_path

PATHS = [
    "mlp..mlp.down",
    "..output.dense",
    "norm_1..attn.q,attn.k; norm_2..mlp.up",
]


@pytest.mark.parametrize("path", PATHS)
def test_what_is_written_is_read_back(path: str) -> None:
    assert is_spans(path)
    assert spans_path(parse_spans(path)) == path


def test_plain_modules_and_methods_are_no_spans() -> None:
    assert not any(map(is_spans, ["mlp", "layer.1", "feed_forward_chunk()"]))


@pytest.mark.parametrize(
    ("span", "holds"),
    [
        (UnitSpan("mlp", ("mlp.down",)), True),
        (UnitSpan("", ("output.dense",)), True),
        (UnitSpan("mlp", ("mlp_2.down",)), False),
        (UnitSpan("mlp.act", ("mlp.down",)), False),
    ],
)
def test_a_head_holds_a_tail_that_is_a_part_of_it(span: UnitSpan, holds: bool) -> None:
    assert span.holds_tail == holds


@pytest.mark.parametrize("path", ["a..", "a...b", "a..b; ", "a..b,,c", "a b..c", "a..b()"])
def test_what_is_no_span_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is no span; allowed: a module and, after two dots"):
        parse_spans(path)
