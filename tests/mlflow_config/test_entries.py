from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name, _validate_param, _validate_tag

from mlflow_config.entries import MAX_PARAM_LENGTH, MAX_TAG_LENGTH, entries, legal_name


def test_absent_values_are_left_out() -> None:
    made = entries(params={"a": None, "b": 1}, metrics={"c": None, "d": 2}, tags={"e": None, "f": "x"})
    assert (made.params, made.metrics, made.tags, made.texts) == ({"b": "1"}, {"d": 2.0}, {"f": "x"}, {})


def test_zero_and_false_are_values() -> None:
    made = entries(params={"a": 0}, metrics={"b": 0}, tags={"c": False})
    assert (made.params, made.metrics, made.tags) == ({"a": "0"}, {"b": 0.0}, {"c": "false"})


def test_booleans_read_as_in_a_search() -> None:
    assert entries(tags={"on_front": True, "is_best": False}).tags == {"on_front": "true", "is_best": "false"}


@pytest.mark.parametrize(("number", "text"), [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")])
def test_number_that_mlflow_would_change_becomes_a_tag(number: float, text: str) -> None:
    made = entries(metrics={"error": number})
    assert (made.metrics, made.tags) == ({}, {"error": text})


def test_long_parameter_is_kept_whole_as_a_text() -> None:
    policy = "block " * 1500
    made = entries(params={"policy": policy})
    assert made.texts == {"params/policy.txt": policy}
    assert made.params["policy"].endswith("(9000 characters, whole in params/policy.txt)")
    assert len(made.params["policy"]) < 300


def test_long_tag_is_kept_whole_as_a_text() -> None:
    made = entries(tags={"reason": "x" * (MAX_TAG_LENGTH + 1)})
    assert made.texts == {"tags/reason.txt": "x" * (MAX_TAG_LENGTH + 1)}
    assert len(made.tags["reason"]) < 300


def test_longest_parameter_stays_in_its_place() -> None:
    made = entries(params={"policy": "x" * MAX_PARAM_LENGTH})
    assert (made.texts, made.params) == ({}, {"policy": "x" * MAX_PARAM_LENGTH})


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("blocks[0].attn", "blocks_0_.attn"),
        ("peak_reserved(GiB)", "peak_reserved_GiB_"),
        ("placement.transformer.h", "placement.transformer.h"),
        ("a/b:c", "a_b_c"),
        ("..", "_"),
        ("", "_"),
    ],
)
def test_legal_name(name: str, legal: str) -> None:
    assert legal_name(name) == legal


@given(name=st.text(max_size=300), value=st.text(max_size=50))
def test_mlflow_accepts_every_name_we_make(name: str, value: str) -> None:
    made = entries(params={name: value}, metrics={name: 1.0}, tags={name: value})
    _validate_param(*next(iter(made.params.items())))
    _validate_tag(*next(iter(made.tags.items())))
    _validate_metric_name(next(iter(made.metrics)))


def test_names_that_would_become_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"names 'a\[0\]' and 'a\(0\)' are both 'a_0_' in MLflow"):
        entries(params={"a[0]": 1, "a(0)": 2})
