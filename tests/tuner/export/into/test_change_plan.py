"""Keyed configs of the kinds that people have, with settings in them: what changes, what stays, what is refused."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tuner.export.into.change_plan import value_at, with_settings
from tuner.export.into.config_text import ConfigFormat, UneditableError
from tuner.export.into.json_config import JsonConfig
from tuner.export.into.toml_config import TomlConfig
from tuner.export.into.yaml_config import YamlConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

YAML, TOML, JSON = YamlConfig(), TomlConfig(), JsonConfig()

FLAT: dict[str, object] = {"micro": 2, "steps": 4, "recompute": True, "kwargs": {"reentrant": False}}
TABLES: dict[str, object] = {"training": {"local": 2, "global": 8}, "recompute": {"mode": "full", "keep": True}}


def edited(form: ConfigFormat, text: str, settings: dict[str, object], *obsolete: str) -> str:
    after, _ = with_settings(form, text, settings, obsolete)
    assert with_settings(form, after, settings, obsolete)[0] == after
    return after


AXOLOTL_LIKE = """base_model: some/model   # the start
datasets:
  - path: a/b
    type: alpaca

micro: 8   # per device
steps: 1
optimizer: 'adamw_8bit'
recompute: false

kwargs:
  # of torch's own call
  reentrant: true

tokens:
  pad: "<|end|>"
# the end
"""


def test_yaml_changes_values_and_nothing_around_them() -> None:
    assert edited(YAML, AXOLOTL_LIKE, FLAT) == AXOLOTL_LIKE.replace("micro: 8", "micro: 2").replace(
        "steps: 1", "steps: 4"
    ).replace("recompute: false", "recompute: true").replace("reentrant: true", "reentrant: false")


def test_yaml_adds_a_key_below_the_setting_before_it() -> None:
    text = "lr: 1.0e-4\nmicro: 2  # here\n\n# more\nname: x\n"
    assert edited(YAML, text, FLAT) == (
        "lr: 1.0e-4\nmicro: 2  # here\nsteps: 4\nrecompute: true\nkwargs:\n  reentrant: false\n\n# more\nname: x\n"
    )


@pytest.mark.parametrize(
    "before, settings, after",
    [
        ("a: {micro: 8, x: 1}\n", {"micro": 2, "steps": 4}, "a: {micro: 2, x: 1, steps: 4}\n"),
        ("micro: '8'\nmode: \"x\"\n", {"micro": 2, "mode": "full"}, 'micro: 2\nmode: "full"\n'),
        ("micro:\nx: 1\n", {"micro": 2}, "micro: 2\nx: 1\n"),
        ("micro: 8\nkwargs:\n", FLAT, "micro: 2\nsteps: 4\nrecompute: true\nkwargs: {reentrant: false}\n"),
        ("micro: 1\nkwargs:\n  a: 1\n  b: [2]\nx: 1\n", {"kwargs": None}, "micro: 1\nkwargs: null\nx: 1\n"),
        ("names:\n  - a\n  - b  # two\nx: 1\n", {"names": ["c", "d"]}, "names:\n  - c\n  - d  # two\nx: 1\n"),
        ("names:\n- a\nx: 1\n", {"names": []}, "names: []\nx: 1\n"),
        ("names: [a, b]\n", {"names": ["h.{0-3}"]}, "names: ['h.{0-3}']\n"),
        ("---\nmicro: 8\n", {"micro": 2}, "---\nmicro: 2\n"),
        ("micro: 8\r\nx: 1", {"micro": 2, "steps": 4}, "micro: 2\r\nsteps: 4\r\nx: 1"),
        ("x: 1\nmicro: 2", {"micro": 2, "steps": 4}, "x: 1\nmicro: 2\nsteps: 4"),
        ("micro: True\n", {"micro": True}, "micro: True\n"),
        ("micro: yes\n", {"micro": True}, "micro: true\n"),
        ("text: |\n  micro: 1\n\nmicro: 8\n", {"micro": 2}, "text: |\n  micro: 1\n\nmicro: 2\n"),
        ("d: &d {x: 1}\ne:\n  <<: *d\nmicro: 8\n", {"micro": 2}, "d: &d {x: 1}\ne:\n  <<: *d\nmicro: 2\n"),
        ("n: &n 8\nmicro: *n\n", {"micro": 2}, "n: &n 8\nmicro: 2\n"),
        ("d: &d\n  m: 1\nmicro: 3\nuse:\n  <<: *d\n", {"micro": 2}, "d: &d\n  m: 1\nmicro: 2\nuse:\n  <<: *d\n"),
        ("runs:\n  - {micro: 1}\nmicro: 3\n", {"micro": 2}, "runs:\n  - {micro: 1}\nmicro: 2\n"),
        ("micro: 8 # a: b\n", {"micro": 2}, "micro: 2 # a: b\n"),
    ],
)
def test_yaml_in_many_layouts(before: str, settings: dict[str, object], after: str) -> None:
    assert edited(YAML, before, settings) == after


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("micro: 1\nmicro: 2\n", 2, "says micro twice in one mapping"),
        ("a: {micro: 1}\nb: {micro: 2}\n", None, r"several places: a\.micro \(line 1\), b\.micro \(line 2\)"),
        ("x: 1\n", None, "has none of the keys micro, steps"),
        ("micro: ${MBS:4}\n", 1, r"micro is \$\{MBS:4\}, which something else fills in"),
        ("micro: {{ mbs }}\n", 1, r"micro is \{\{ mbs \}\}, which something else fills in"),
        ("{% if a %}\nmicro: 1\n", 1, "is not plain YAML"),
        ("micro: 1\nname: run-${micro}\n", 2, r"refers to micro by \$\{micro\}"),
        ("micro: &m 1\nother: *m\n", 1, "micro has an anchor or tag"),
        ("micro: !!int '1'\n", 1, "micro has an anchor or tag"),
        ("a: &a\n  micro: 1\nb: *a\n", None, "several places"),
        ("? [a, b]\n: {micro: 1}\n", None, "has none of the keys"),
        ("- micro: 1\n", 1, "holds no mapping of keys and values"),
        ("micro: 1\n---\nmicro: 2\n", 2, "is not plain YAML"),
        ("micro: [1\n", 2, "is not plain YAML"),
        ("micro: |\n  1\n", 1, "micro is text over several lines"),
        ("", 1, "holds no mapping"),
    ],
)
def test_yaml_that_cannot_be_edited_alone_is_refused(text: str, line: int | None, message: str) -> None:
    with pytest.raises(UneditableError, match=message) as caught:
        with_settings(YAML, text, {"micro": 7, "steps": 4}, ())
    assert caught.value.line == line


def test_an_edit_inside_an_anchor_that_is_used_elsewhere_is_refused() -> None:
    with pytest.raises(UneditableError, match="without changing another place"):
        with_settings(YAML, "train: &t\n  micro: 1\neval:\n  <<: *t\n", {"train": {"micro": 2}}, ())


@pytest.mark.parametrize(
    "text",
    [
        "micro: 1\na: &a [*a]\n",
        "micro: 1\n" + "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9 if i else ['1'])}]\n" for i in range(9)),
    ],
    ids=["inside itself", "billions"],
)
def test_anchors_without_end_are_refused(text: str) -> None:
    with pytest.raises(UneditableError, match="repeats anchors inside themselves or too often"):
        with_settings(YAML, text, {"micro": 2}, ())


def test_a_mapping_that_repeats_an_anchor_is_refused() -> None:
    with pytest.raises(UneditableError, match="train repeats an anchor, which an edit would change as well"):
        with_settings(YAML, "base: &t\n  micro: 1\ntrain: *t\n", {"train": {"micro": 2}}, ())


def test_keys_that_contradict_are_taken_out_with_their_lines() -> None:
    text = "old: true  # gone\nmicro: 2\nold_kwargs:\n  a: 1\n  b: 2\n# stays\nsteps: 4\n"
    settings: dict[str, object] = {"micro": 2, "steps": 4}
    assert edited(YAML, text, settings, "old", "old_kwargs", "absent") == "micro: 2\n# stays\nsteps: 4\n"


def test_keys_below_another_one_are_found_there() -> None:
    text = "name: x\nargs:\n    deep:\n        micro: 8\n    lr: 1\n"
    after, section = with_settings(YAML, text, {"micro": 2, "steps": 4}, ())
    assert section == ("args", "deep")
    assert after == text.replace("micro: 8\n", "micro: 2\n        steps: 4\n")


TITAN_LIKE = """# a debug run
[job]
description = "a [training] run"   # [training]

[training]
local = 8   # per rank
seq_len = 2048
"steps" = 10

# how to recompute
[recompute]
mode = 'selective'  # one of ["none", "full"]

[compile]
parts = [
    "model",  # ]
    \"\"\"[x]
y = 1\"\"\",
]
enable=false
"""


def test_toml_changes_values_and_adds_keys_below_their_relatives() -> None:
    assert edited(TOML, TITAN_LIKE, TABLES) == TITAN_LIKE.replace(
        "local = 8   # per rank\n", "local = 2   # per rank\nglobal = 8\n"
    ).replace(
        'mode = \'selective\'  # one of ["none", "full"]\n', 'mode = \'full\'  # one of ["none", "full"]\nkeep = true\n'
    )


@pytest.mark.parametrize(
    "before, settings, after",
    [
        (
            "[training]\nx = 1",
            TABLES,
            '[training]\nx = 1\nlocal = 2\nglobal = 8\n\n[recompute]\nmode = "full"\nkeep = true',
        ),
        ("[training]\nlocal=8\r\nx=1\r\n", {"training": {"local": 2}}, "[training]\nlocal=2\r\nx=1\r\n"),
        ("training.local = 8\n", {"training": {"local": 2, "b": 1}}, "training.local = 2\ntraining.b = 1\n"),
        ("[training]\n  local = 8 # x\n", {"training": {"local": 2, "b": 1}}, "[training]\n  local = 2 # x\n  b = 1\n"),
        ("[training]\nlocal = 8\nz = 1\n", {"training": {"z": None, "local": 8}}, "[training]\nlocal = 8\n"),
        ("[training]\n[other]\nx = 1\n", {"training": {"local": 2}}, "[training]\nlocal = 2\n[other]\nx = 1\n"),
        ("[a.training]\nlocal = 8\n", {"training": {"local": 2}}, "[a.training]\nlocal = 2\n"),
        ('[training]\nlocal = """\n8"""\n', {"training": {"local": 2}}, "[training]\nlocal = 2\n"),
    ],
)
def test_toml_in_many_layouts(before: str, settings: dict[str, object], after: str) -> None:
    assert edited(TOML, before, settings) == after


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("[training]\nlocal = 1\nlocal = 2\n", 3, "is not TOML"),
        ("[training]\nx = \n", 2, r"is not TOML \(Invalid value at column 5\); correct it"),
        ("[training]\nx = [1,\n", 2, r"is not TOML \(Invalid value at the end of the file\); correct it"),
        ("training = 3\n", 1, "training is 3, not a table; write it as"),
        ("recompute.mode = 'none'\ntraining = [1,\n2]\n", 2, r"training is \[1,, not a table"),
        ("[[training]]\nx = 1\n", 1, "training is an array of tables, not a table"),
        ("recompute.x = 1\n[[training]]\nx = 1\n", 2, "training is an array of tables, not a table"),
        (f"[training]\nx = {'1' * 5000}\n", 2, "has a number of more digits than can be read; shorten it"),
        ("training = {local = 8}\nx = 1\n", None, "training is an inline table or spread over others"),
        ("[training.sub]\nx = 1\n", None, "training is an inline table or spread over others"),
        ("[model]\nx = 1\n", None, "has none of the keys training, recompute"),
    ],
)
def test_toml_that_cannot_be_edited_alone_is_refused(text: str, line: int | None, message: str) -> None:
    with pytest.raises(UneditableError, match=message) as caught:
        with_settings(TOML, text, {**TABLES, "training": {"global": 8}}, ())
    assert caught.value.line == line


@pytest.mark.parametrize(
    "before, settings, after",
    [
        ('{\n  "micro": 8,\n  "x": 1\n}\n', {"micro": 2, "steps": 4}, '{\n  "micro": 2,\n  "steps": 4,\n  "x": 1\n}\n'),
        ('{"micro":"auto"}', {"micro": 2, "steps": 4}, '{"micro":2, "steps": 4}'),
        ('{"micro": 2, "kwargs": {}}', {"kwargs": {"a": True}}, '{"micro": 2, "kwargs": {"a": true}}'),
        ('{"micro": true, "x": [1, {"micro": 3}]}', {"micro": 1}, '{"micro": 1, "x": [1, {"micro": 3}]}'),
        ('{"a": {"micro": 2.0}}', {"micro": 2}, '{"a": {"micro": 2}}'),
        ('{"micro": 1, "k": {"a": 1}}', {"micro": 1, "k": None}, '{"micro": 1, "k": null}'),
    ],
)
def test_json_in_many_layouts(before: str, settings: dict[str, object], after: str) -> None:
    assert edited(JSON, before, settings) == after


@pytest.mark.parametrize(
    "text, after",
    [
        ('{"old": 1, "micro": 2}', '{"micro": 2}'),
        ('{\n  "micro": 2,\n  "old": [1,\n 2]\n}', '{\n  "micro": 2\n}'),
        ('{"micro": 2, "old": 1, "x": 3}', '{"micro": 2, "x": 3}'),
    ],
)
def test_json_loses_keys_that_contradict(text: str, after: str) -> None:
    assert edited(JSON, text, {"micro": 2}, "old") == after


@pytest.mark.parametrize(
    "text, line, message",
    [
        ('{"micro": 1, "micro": 2}', None, "says micro twice in one object"),
        ('{"micro": 1,}', 1, "is not JSON"),
        ('// x\n{"micro": 1}', 1, "is not JSON"),
        ("[1]", 1, "holds no object"),
        ('{"a": {"micro": 1}, "b": {"micro": 2}}', None, "several places: a.micro"),
        ('{"a": {"old": 1},\n"b": {"old": 2}}', None, r"places: a\.old \(line 1\), b\.old \(line 2\); edit"),
        (f'{{"micro": 1,\n"x": {"1" * 5000}}}', 2, "has a number of more digits than can be read; shorten it"),
    ],
)
def test_json_that_cannot_be_edited_alone_is_refused(text: str, line: int | None, message: str) -> None:
    with pytest.raises(UneditableError, match=message) as caught:
        with_settings(JSON, text, {"micro": 7}, ("old",))
    assert caught.value.line == line


def test_an_error_after_a_first_edit_names_the_line_that_the_user_has() -> None:
    text = "[recompute]\nmode = 'none'\n[[training]]\nx = 1\n"
    with pytest.raises(UneditableError, match="training is an array of tables") as caught:
        with_settings(TOML, text, {"recompute": {"mode": "full", "keep": True}, "training": {"local": 2}}, ())
    assert caught.value.line == 3


@pytest.mark.parametrize(
    "form, text, path, value",
    [
        (YAML, "a: {b: 1}\n", ("a", "b"), 1),
        (TOML, "[a]\nb = 4\n", ("a", "b"), 4),
        (JSON, '{"a": {"b": 2}}', ("a", "b"), 2),
        (JSON, '{"a": 1}', ("a", "b"), None),
    ],
)
def test_a_value_can_be_asked_for(form: ConfigFormat, text: str, path: tuple[str, ...], value: object) -> None:
    assert value_at(form, text, path) == (None if value is None else form.plain(value))


KEYS = st.sampled_from(["micro", "steps", "recompute", "kwargs", "x", "y", "z w"])
SCALARS = st.one_of(
    st.integers(-5, 5), st.booleans(), st.none(), st.sampled_from(["a", "on", "1e-4", "x: y", "# z", ""])
)
DATA = st.dictionaries(
    KEYS,
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)),
    max_size=6,
)


def expected(data: dict[str, Any]) -> dict[str, Any]:
    kwargs = data.get("kwargs")
    return {
        **data,
        "micro": 2,
        "steps": 4,
        "recompute": True,
        "kwargs": {**(kwargs if isinstance(kwargs, dict) else {}), "reentrant": False},
    }


@given(DATA, st.sampled_from([None, True, False]), st.sampled_from([2, 4]))
@hypothesis_settings(max_examples=75, deadline=None)
def test_whatever_else_a_yaml_file_says_it_says_afterwards(
    data: dict[str, Any], flow: bool | None, indent: int
) -> None:
    data["micro"] = data.get("micro")
    text = yaml.safe_dump(data, default_flow_style=flow, indent=indent, sort_keys=False)
    assert yaml.safe_load(edited(YAML, text, FLAT)) == expected(data)


@given(DATA, st.sampled_from([None, 2]))
@hypothesis_settings(max_examples=50, deadline=None)
def test_whatever_else_a_json_file_says_it_says_afterwards(data: dict[str, Any], indent: int | None) -> None:
    data["micro"] = data.get("micro")
    assert json.loads(edited(JSON, json.dumps(data, indent=indent), FLAT)) == expected(data)


def test_whatever_else_a_toml_file_says_it_says_afterwards() -> None:
    before, after = tomllib.loads(TITAN_LIKE), tomllib.loads(edited(TOML, TITAN_LIKE, TABLES))
    before["training"] |= {"local": 2, "global": 8}
    before["recompute"] |= {"mode": "full", "keep": True}
    assert after == before
