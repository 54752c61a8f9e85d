from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.kept_operators import KeptOperator, normal_keep


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("aten.mm.default", {0, 1, 2, 3, 4, 5}),
        ("aten.mm.default[2]", {2}),
        ("aten.mm.default[4,0]", {0, 4}),
        ("aten.mm.default[::2]", {0, 2, 4}),
        ("aten.mm.default[1::2]", {1, 3, 5}),
        ("aten.mm.default[4::1]", {4, 5}),
    ],
)
def test_an_entry_keeps_the_calls_that_it_names(entry: str, kept: set[int]) -> None:
    rule = KeptOperator.parse(entry)
    assert {call for call in range(6) if rule.keeps(call)} == kept


@pytest.mark.parametrize(
    ("entry", "normal"),
    [("aten.mm.default[4,0,4]", "aten.mm.default[0,4]"), ("aten.mm.default[0::1]", "aten.mm.default")],
)
def test_entries_have_one_normal_form(entry: str, normal: str) -> None:
    assert normal_keep([entry]) == (normal,)


calls = st.none() | st.frozensets(st.integers(0, 40), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
rules = st.builds(KeptOperator, st.just("aten._softmax.default"), calls, st.integers(0, 9), st.integers(1, 9)).filter(
    lambda rule: rule.calls is None or (rule.start, rule.step) == (0, 1)
)


@given(rule=rules)
def test_what_is_written_is_read_back(rule: KeptOperator) -> None:
    assert KeptOperator.parse(str(rule)) == rule


@pytest.mark.parametrize(
    ("entry", "short"),
    [
        ("aten.addmm.default[0]", "addmm[0]"),
        ("aten._scaled_dot_product_flash_attention.default", "flash_attention"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "flash_attention"),
        ("aten.native_layer_norm.default[1]", "layer_norm[1]"),
        ("aten.add.Tensor", "add.Tensor"),
    ],
)
def test_tables_leave_out_what_names_have_in_common(entry: str, short: str) -> None:
    assert KeptOperator.parse(entry).short == short


@pytest.mark.parametrize(
    "entry", ["", "mm", "aten.mm", "aten.mm.default[]", "aten.mm.default[::0]", "a.b.c.d", "a b.c.d"]
)
def test_what_names_no_operator_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"names no operator; allowed: namespace\.operator\.overload such as"):
        normal_keep([entry])


def test_an_operator_is_named_once() -> None:
    with pytest.raises(ValueError, match=r"aten\.mm\.default\[1\] and aten\.mm\.default.* name one operator twice"):
        normal_keep(["aten.mm.default[1]", "aten.mm.default[2]"])


def test_a_keep_set_holds_something() -> None:
    with pytest.raises(ValueError, match="no operator is named; allowed: one or more"):
        normal_keep([])
