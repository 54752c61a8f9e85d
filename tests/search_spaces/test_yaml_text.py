from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.strict_yaml import parse_yaml
from search_spaces.yaml_text import dump_yaml, dump_yaml_line

_TRAPS = "010 1e-4 1E5 on off y n 1:30 1_000 0b1 0o7 0x1F 2024-01-01 << = ~ null .inf -.5 5. 1.e5 1_0.5 00 true"
_TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
    | st.sampled_from(_TRAPS.split())
    | st.from_regex(r"[-+0-9_.eExob:]{1,8}", fullmatch=True)
)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | _TEXTS
_DATA = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4), max_leaves=15
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(_DATA)
def test_every_reader_takes_the_text_for_the_same_data(data: Any) -> None:
    text = dump_yaml(data)
    document = parse_yaml(text, where="text")
    assert repr(document.data) == repr(data)
    assert not document.disputed
    assert repr(yaml.safe_load(text)) == repr(data)


@pytest.mark.parametrize("word", ["no_blocks", "num_blocks", "yes_sir", "attention", "e-4", "10m", "80GiB"])
def test_plain_words_need_no_quotes(word: str) -> None:
    assert dump_yaml({word: word}) == f"{{{word}: {word}}}\n"


def test_text_that_looks_like_a_number_is_quoted() -> None:
    assert dump_yaml(["1e-4", "010", "y", "1:30", 1e-4]) == "['1e-4', '010', 'y', '1:30', 0.0001]\n"


def test_repeated_values_are_written_out() -> None:
    shared = {"a": 1}
    assert dump_yaml({"u": shared, "v": shared, "w": (1, 2)}) == "u: {a: 1}\nv: {a: 1}\nw: [1, 2]\n"


def test_what_plain_yaml_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1\+2j\) is a complex, which plain YAML cannot say"):
        dump_yaml({"a": complex(1, 2)})


_ONE_LINE = ["plain", "1e-3", "a\nb: c\n\x1b", "'\"", "long words " * 50, "", None, True, 1.5, [1, "x\ny"]]


@pytest.mark.parametrize("value", _ONE_LINE, ids=repr)
def test_one_line_is_the_value_again(value: object) -> None:
    line = dump_yaml_line(value)
    assert line.isprintable()
    assert yaml.safe_load(f"[{line}]") == [value]
    assert yaml.safe_load(f"key: {line}") == {"key": value}
