"""Files that begin as good ones and are then edited by somebody careless, or by somebody who means harm."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import strategies as st

_WORDS = [
    *("auto", "null", "~", "true", "off", "yes", "1e-4", "010", "0x1f", "1_000", "1:30", "2026-01-01", "=", "<<"),
    *(".inf", "block", "segment", "selective", "none+block", "attention+mlp", "+", "GPU", "search", "80GiB", "90%"),
    *("10m", "../../etc/passwd", "/etc/passwd", "a/b", "..", "-rf", "$(id)", "`id`", "%s%n", "=cmd()", "os:system"),
    *(
        "huggingface:gpt2",
        "/tmp/x.py:f",
        "http://u:p@h",
        "postgresql://",
        "sqlite:///x.db",
        "<script>alert(1)</script>",
    ),
    *("a\nb", "\x1b[2J", "\x9b2J", "\u202e", "\U0001f600", "{{ 7 * 7 }}", "[bold]x[/bold]", "x" * 300),
]
_NUMBERS = [0, 1, -1, 2, 3, 8, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 0.0, -0.0, 0.5, 1e308, 5e-324]

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(_NUMBERS),
    st.integers(),
    st.floats(),
    st.sampled_from(_WORDS),
    st.text(max_size=12),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=5), inner),
    max_leaves=6,
)
#: Pieces of YAML that nobody's data end up as.
SNIPPETS = [
    *(
        "- ",
        "? ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "#",
        "'",
        "|",
        ">",
        "&a ",
        "*a",
        "*b",
        "!",
        "%",
        "<<: *a\n",
        "<<: [*a]\n",
    ),
    *(
        "<<: [*a]\n",
        "!!int ",
        "!!binary aGk=",
        "---\n",
        "...\n",
        "\\UFFFFFFFF",
        "1e99999",
        '"',
        "\t",
        "\n",
        "  ",
        "\r",
        "\x00",
    ),
    *("\x1b[31m", "\x85", "\u2028", "\ufeff", '"\\ud800"', "%YAML 1.2\n", "%TAG ! tag:x,2000:\n", "&a [*a]"),
    *("!!python/object/apply:os.system [id]", "[" * 60, "{a: " * 60, "- " * 60, "0" * 5000, "9" * 5000),
]
_EDITS = ["replace", "replace", "remove", "add", "rename", "swap"]


@st.composite
def edited_data(draw: st.DrawFn, sample: Any) -> Any:
    """The sample's data after a few edits."""
    data = copy.deepcopy(sample)
    for _ in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from(list(_paths(data)) or [()]))
        data = _edited(
            data, path, draw(st.sampled_from(["replace", "replace", "remove", "add", "rename", "swap"])), draw
        )
    return data


@st.composite
def edited_text(draw: st.DrawFn, sample: str) -> bytes:
    """The sample after edits of its data, written as YAML or JSON, and after edits of that text."""
    data = yaml.safe_load(sample)
    if draw(st.integers(0, 3)):
        data = draw(edited_data(data))
        text = json.dumps(data) if sample.startswith("{") else yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
    else:
        text = sample
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 5]))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.sampled_from([0, 0, 1, 3, 20])))
        text = (
            text[:begin] + draw(st.sampled_from(SNIPPETS) | st.sampled_from(_WORDS) | st.text(max_size=4)) + text[end:]
        )
    content = text.encode("utf-8", errors="surrogatepass")
    if draw(st.integers(0, 19)) == 0:
        content = content[: draw(st.integers(0, len(content)))] + draw(st.binary(max_size=8))
    return content


def _edited(data: Any, path: tuple[Any, ...], how: str, draw: st.DrawFn) -> Any:
    if not path:
        return draw(_VALUES) if draw(st.integers(0, 9)) == 0 else data
    *parents, last = path
    place = data
    for part in parents:
        place = place[part]
    if how == "remove":
        del place[last]
    elif how == "rename" and isinstance(place, dict):
        place[draw(st.sampled_from(_WORDS) | st.just(f"{last}s"))] = place.pop(last)
    elif how == "add" and isinstance(place[last], dict):
        place[last][draw(st.sampled_from(_WORDS))] = draw(_VALUES)
    elif how == "add" and isinstance(place[last], list):
        place[last].append(copy.deepcopy(place[last][0]) if place[last] and draw(st.booleans()) else draw(_VALUES))
    elif how == "swap":
        other = draw(st.sampled_from(list(_paths(data))))
        value = data
        for part in other:
            value = value[part]
        place[last] = copy.deepcopy(value)
    else:
        place[last] = draw(_VALUES)
    return data


def _paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield from _paths(value, (*path, key))
