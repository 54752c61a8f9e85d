from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from search_spaces.strict_yaml import MAX_FILE_BYTES, StrictYamlError, YamlDocument, parse_yaml, read_yaml


def parse(content: bytes | str) -> YamlDocument:
    return parse_yaml(content, where="file.yaml")


def refusal(content: bytes | str) -> StrictYamlError:
    with pytest.raises(StrictYamlError, match=r"^file\.yaml[:]") as caught:
        parse(content)
    assert "\n" not in str(caught.value)
    return caught.value


def test_plain_data_come_with_the_line_of_every_entry() -> None:
    document = parse("a: 1\nb:\n  c: [x,\n      y]\n  d:\n  - e: 2\n    f: null\n")
    assert document.data == {"a": 1, "b": {"c": ["x", "y"], "d": [{"e": 2, "f": None}]}}
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 3,
        ("b", "c", 1): 4,
        ("b", "d"): 5,
        ("b", "d", 0): 6,
        ("b", "d", 0, "e"): 6,
        ("b", "d", 0, "f"): 7,
    }


def test_an_absent_entry_has_the_line_of_what_is_around_it() -> None:
    document = parse("a: 1\nb:\n  c: 2\n")
    assert document.line_of(("b", "missing", 3)) == 2
    assert document.line_of(("missing",)) == 1


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "\ufeff", "null"])
def test_a_text_without_content_holds_none(text: str) -> None:
    assert parse(text.encode()).data is None


def test_bytes_may_start_with_a_mark_and_end_lines_in_any_way() -> None:
    assert parse(b"\xef\xbb\xbfa: 1\r\nb: \xc3\xa9\r\n").data == {"a": 1, "b": "\u00e9"}


# Duplicates, merges and anchors


def test_a_key_that_stands_twice_is_refused_with_both_lines_and_the_rest_is_read_on() -> None:
    error = refusal("memory_cap: 1GiB\nsearch:\n  seed: 1\n  num_trials: 3\n  seed: 2\n\nmemory_cap: 2GiB\n")
    assert [problem.located("f") for problem in error.problems] == [
        "f:5: search.seed stands twice, on lines 3 and 5; remove one of the two",
        "f:7: memory_cap stands twice, on lines 1 and 7; remove one of the two",
    ]
    assert error.document is not None
    assert error.document.data == {"memory_cap": "1GiB", "search": {"seed": 1, "num_trials": 3}}
    assert error.line == 5
    assert str(error).endswith("(and 1 more)")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("{a: 1, a: 1}", "1 and 1"),
        ("- {b: 1}\n- 'a': 1\n  \"a\": 2\n", "2 and 3"),
        ("a: &x {<<: {b: 1},\n <<: {c: 2}}", "1 and 2"),
        ("? a\n: 1\n? a\n: 2\n", "1 and 3"),
    ],
    ids=["flow", "quoted", "merge key", "explicit key"],
)
def test_duplicates_are_found_however_they_are_written(text: str, lines: str) -> None:
    assert f"stands twice, on lines {lines}" in str(refusal(text))


def test_merge_keys_and_anchors_work_and_own_keys_win() -> None:
    document = parse("base: &base {x: 1, y: 2}\nmore: &more {y: 9, z: 3}\nuse:\n  y: 5\n  <<: [*base, *more]\n")
    assert document.data["use"] == {"y": 5, "x": 1, "z": 3}
    assert document.lines["use", "x"] == 1
    assert document.lines["use", "y"] == 4


def test_a_quoted_merge_key_is_a_key() -> None:
    assert parse("{'<<': {a: 1}}").data == {"<<": {"a": 1}}


def test_aliases_are_copies_with_their_own_lines() -> None:
    document = parse("a: &a [1, 2]\nb:\n  - *a\n  - *a\n")
    first, second = document.data["b"]
    first.append(3)
    assert second == [1, 2]
    assert document.lines["b", 1] == 4
    assert document.lines["b", 1, 0] == 1


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a\n  <<: *a\n"])
def test_an_entry_inside_itself_is_refused(text: str) -> None:
    assert "stands inside the entry that it repeats" in str(refusal(text))


def test_an_alias_of_nothing_is_refused() -> None:
    assert str(refusal("a: 1\nb: *c\n")).startswith("file.yaml:2: the alias 'c' repeats nothing")


@pytest.mark.parametrize("value", ["1", "[1]", "[{a: 1}, 2]", "text"])
def test_only_mappings_can_be_merged(value: str) -> None:
    assert "a mapping or a list of mappings can be merged" in str(refusal(f"a: 1\n<<: {value}\n"))


# Keys


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "y", "n", "1:30", "2024-01-31", "a b"])
def test_words_as_keys_are_text(word: str) -> None:
    assert parse(f"{word}: 1").data == {word: 1}


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("1", "is 1"),
        ("1.5", "is 1.5"),
        ("true", "is true"),
        ("null", "is empty (null)"),
        ("~", "is empty (null)"),
        ("[a]", "is a list"),
        ("{a: 1}", "is a mapping"),
        ("010", "is '010'"),
        ("!!binary aa", "has the tag"),
    ],
)
def test_keys_that_are_not_text_are_refused(key: str, what: str) -> None:
    error = refusal(f"x: 1\ny:\n  ? {key}\n  : 2\n")
    assert str(error).startswith(f"file.yaml:3: a key of y {what}")
    assert error.document is not None
    assert error.document.data == {"x": 1, "y": {}}


# Values


def test_disputed_words_are_listed_by_path_unless_quoted() -> None:
    document = parse("a: off\nb: 'off'\nc: [1:30, x]\nd: |\n  on\ne: !!str yes\n")
    assert document.data == {"a": "off", "b": "off", "c": ["1:30", "x"], "d": "on\n", "e": "yes"}
    assert document.disputed == {("a",): "true or false", ("c", 0): "a number"}


def test_refused_values_are_named_and_the_rest_is_read_on() -> None:
    error = refusal("a: 010\nb: [1, 1_000]\nc: 5\n")
    assert [(problem.line, problem.unread) for problem in error.problems] == [(1, ("a",)), (2, ("b", 1))]
    assert error.document is not None
    assert error.document.data == {"a": "010", "b": [1, "1_000"], "c": 5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!int 8", 8),
        ("!!float 1", 1.0),
        ("!!float 1e-4", 0.0001),
        ("!!bool true", True),
        ("!!null ~", None),
        ("!!str 8", "8"),
        ("! 8", "8"),
        ("!!int '8'", 8),
        ("!!seq [1]", [1]),
        ("!!map {a: 1}", {"a": 1}),
    ],
)
def test_the_core_tags_are_read(text: str, value: Any) -> None:
    data = parse(f"a: {text}").data["a"]
    assert (data, type(data)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!binary aGk=",
        "!!timestamp 2024-01-01",
        "!!set {a}",
        "!!omap [a: 1]",
        "!mine 1",
        "!!map [1]",
        "!!seq {a: 1}",
        "!<x> 1",
    ],
)
def test_every_other_tag_is_refused_by_name(text: str) -> None:
    assert "a has the tag '" in str(refusal(f"a: {text}"))


@pytest.mark.parametrize("text", ["!!int yes", "!!bool yes", "!!int 1.5", "!!float x", "!!null x", "!!int 010"])
def test_a_value_that_does_not_fit_its_tag_is_refused(text: str) -> None:
    assert str(refusal(f"a: {text}")).startswith("file.yaml:1: a is '")


# Limits and broken texts


def test_a_second_document_is_refused() -> None:
    assert str(refusal("a: 1\n---\nb: 2\n")) == (
        "file.yaml:2: a second document starts here; keep one document in the file"
    )


def test_nested_aliases_are_counted_written_out() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "more than 100000 entries" in str(refusal("\n".join(lines)))


def test_merged_aliases_are_counted_too() -> None:
    base = "base: &base {" + ", ".join(f"k{n}: 1" for n in range(500)) + "}\n"
    assert "more than 100000 entries" in str(refusal(base + "".join(f"u{n}: {{<<: *base}}\n" for n in range(500))))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused(opening: str) -> None:
    assert "deeper than 50 levels" in str(refusal(opening * 100_000))


def test_nesting_hidden_in_aliases_is_refused() -> None:
    text = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))
    assert "deeper than 50 levels" in str(refusal(text))


def test_fifty_levels_are_read() -> None:
    assert len(parse("[" * 50 + "]" * 50).lines) == 50
    assert "deeper" in str(refusal("[" * 51 + "]" * 51))


@pytest.mark.parametrize("content", [b"a: 1\0", "a: 1".encode("utf-16"), bytes(range(256))])
def test_binary_content_is_one_clear_message(content: bytes) -> None:
    assert str(refusal(content)) == ("file.yaml: holds NUL bytes, so it is binary or not UTF-8; save it as UTF-8 text")


def test_other_encodings_are_named_with_their_line() -> None:
    message = str(refusal("a: 1\nb: caf\u00e9\n".encode("latin-1")))
    assert message == "file.yaml:2: holds bytes that are not UTF-8; save it as UTF-8 text"


def test_control_characters_are_named_with_their_line() -> None:
    assert str(refusal("a: 1\nb: \x07\n")).startswith("file.yaml:2: holds the character U+0007")


@pytest.mark.parametrize("escape", [r"\0", r"\ud800", r"x\udfff"])
def test_escapes_cannot_smuggle_unusable_characters_in(escape: str) -> None:
    assert "which is not allowed" in str(refusal(f'a: "{escape}"'))
    assert "which is not allowed" in str(refusal(f'"{escape}": a'))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: b: c", 1),
        ("a: [1,\n2", 2),
        ("a:\n\tb: 1", 2),
        ("a: 'x", 1),
        ("a: 1\n b: 2", 2),
        ("@x", 1),
        ("%A\n%B", 2),
        ('\na: "\\UFFFFFFFF"', 2),
        ("%YAML " + "9" * 5000 + ".1\n--- a", 1),
        ("%YAML 7.0\n--- a", 1),
        ("a: %", 1),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_broken_texts_are_refused_with_their_line(text: str, line: int) -> None:
    error = refusal(text)
    assert error.line == line
    assert error.document is None
    assert len(str(error)) < 300


def test_a_tab_is_called_a_tab() -> None:
    assert str(refusal("a:\n\tb: 1")) == (
        "file.yaml:2: a tab stands where YAML allows only spaces; write spaces instead"
    )


def test_large_files_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(StrictYamlError, match=r"large\.yaml: is larger than 1048576 bytes"):
        read_yaml(path)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"a: 1\n#".ljust(MAX_FILE_BYTES, b"#"))
    assert read_yaml(path).data == {"a": 1}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StrictYamlError, match=r"nowhere\.yaml: cannot be read \(No such file or directory\)"):
        read_yaml(tmp_path / "nowhere.yaml")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StrictYamlError, match=r"cannot be read \(it is not a file\)"):
        read_yaml(tmp_path)


@pytest.mark.timeout(10)
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(StrictYamlError, match=r"cannot be read \(it is not a file\)"):
        read_yaml(tmp_path / "pipe.yaml")


def test_random_texts_give_data_or_the_one_error() -> None:
    rng = random.Random(0)
    pieces = ["a", "b: ", "- ", "? ", ": ", "\n", "\n  ", "[", "]", "{", "}", ", ", "&x ", "*x", "<<: ", "!!int ", "!"]
    pieces += [
        "'",
        '"',
        "\\",
        "|\n",
        ">-\n",
        "#",
        "%",
        "---\n",
        "...\n",
        "010",
        "1e5",
        "on",
        "\t",
        "\x85",
        "\u2028",
        "~",
    ]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(4000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 14)))
        try:
            document = parse(text)
        except StrictYamlError as error:
            outcomes["refused"] += 1
            assert len(str(error).splitlines()) == 1, repr(text)  # noqa: PT017 - the message is what is tested
        else:
            outcomes["read"] += 1
            assert all(document.line_of(path) >= 1 for path in document.lines)
    assert min(outcomes.values()) > 500
